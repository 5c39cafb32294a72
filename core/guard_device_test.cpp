#include "core/guard_device.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <functional>

#include "core/add.h"
#include "core/host_wait.h"
#include "core/kernel.h"
#include "core/profile.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

// How a process ends that does this.
int status_of_child(const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGABRT, SIG_DFL);  // the test framework's handler would report a failed test
    work();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

void read_first(const Tensor& t) {
  [[maybe_unused]] volatile float value = *static_cast<const float*>(t.address());
}

}  // namespace

TEST_CASE("guard: kernels and copies reach the memory, host code does not") {
  const Tensor host = random_tensor({3, 5}, DType::f32, 1), device = host.to(Device::guard);
  CHECK(device.device() == Device::guard);
  const Tensor sum = Tensor::empty({3, 5}, DType::f32, Device::guard);
  add_elements(sum, device, device);
  const Tensor want = Tensor::empty({3, 5}, DType::f32, Device::cpu);
  add_elements(want, host, host);
  CHECK_BITS(sum.to(Device::cpu), want);
  CHECK_BITS(device.clone().to(Device::cpu), host);
  CHECK(Tensor::zeros({2}, DType::f64, Device::guard).to_vector() == std::vector<double>{0, 0});
  CHECK(Tensor::scalar(3, DType::i64, Device::guard).item<std::int64_t>() == 3);

  static Zone zone("some/zone");
  const ZoneTimer timer(zone);
  CHECK(message_of<std::logic_error>([&] { device.data<float>(); }) ==
        "internal error: tensor data of shape [3, 5] wanted in host memory, is on guard, in zone some/zone");
  CHECK_THROWS_AS(device.host_bytes(), std::logic_error);
  CHECK_THROWS_AS(device.row<float>(1), std::logic_error);
  {
    const guard::Opened opened;
    CHECK(device.data<float>()[0] == host.data<float>()[0]);
    CHECK(std::isnan(*Tensor::empty({1}, DType::f32, Device::guard).data<float>()));
  }
  CHECK_FALSE(guard::is_open());
}

TEST_CASE("guard: an access through an address ends the process") {
  const Tensor device = Tensor::zeros({4}, DType::f32, Device::guard);
  const int status = status_of_child([&] { read_first(device); });
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
  CHECK(status_of_child([&] {
          const guard::Opened opened;
          read_first(device);
        }) == 0);
}

TEST_CASE("guard: waits of the host are counted by name; operands on two devices are refused") {
  const Tensor device = Tensor::zeros({4}, DType::f32, Device::guard);
  reset_host_waits();
  device.to(Device::cpu);
  {
    const HostWaitName name("outer");
    const HostWaitName inner("step result");
    device.to_vector();
    device.narrow(0, 0, 1).item<float>();
  }
  device.clone();
  Tensor::zeros({4}, DType::f32, Device::cpu).to_vector();
  CHECK(host_waits() == std::map<std::string, std::int64_t>{{"in none", 1}, {"step result", 2}});
  reset_host_waits();
  CHECK(host_waits().empty());

  const Tensor host = Tensor::zeros({4}, DType::f32, Device::cpu);
  CHECK(message_of<std::logic_error>([&] { add_elements(device, device, host); }) ==
        "internal error: core/add_elements: an operand of shape [4] is on cpu, others are on guard");
}
