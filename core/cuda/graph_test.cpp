#include "core/cuda/graph.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>

#include "core/add.h"
#include "core/allocator.h"
#include "core/cuda/runtime.h"
#include "core/cuda/test_tensors.h"
#include "core/host_wait.h"
#include "core/memory_limit.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;
using cuda::OnStream;
using cuda::Stream;

TEST_CASE("cuda graphs: work that is captured runs with each launch, on the values that are there by then" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const Tensor x = full(1), sum = full(0);
  const auto work = [&] {
    const Tensor twice = Tensor::empty(x.shape(), x.dtype(), x.device());
    nemocube::add_elements(twice, x, x);
    nemocube::add_elements(sum, sum, twice);
  };
  const std::int64_t before = cuda::launches();
  const auto graph = cuda::capture_graph(work);
  CHECK(cuda::launches() == before);
  CHECK(graph->launches() == 2);
  CHECK(graph->bytes() == x.bytes());
  CHECK(all_are(sum, 0));
  reset_host_waits();
  graph->launch();
  x.fill(3);
  graph->launch();
  graph->launch();
  CHECK(host_waits().empty());
  CHECK(cuda::launches() == before + 4);  // with the fill
  CHECK(all_are(sum, 2 + 6 + 6));
  work();
  CHECK(all_are(sum, 20));
}

TEST_CASE("cuda graphs: streams of a capture are those of each launch" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const Tensor x = full(0), one = full(1);
  const auto graph = cuda::capture_graph([&] {
    nemocube::add_elements(x, x, one);
    cuda::wait_for_event(Stream::communication, cuda::record_event(Stream::compute));
    Tensor made;
    {
      const OnStream beside(Stream::communication);
      made = Tensor::empty(x.shape(), x.dtype(), x.device());
      nemocube::add_elements(made, x, x);
    }
    cuda::wait_for_event(Stream::compute, cuda::record_event(Stream::communication));
    nemocube::add_elements(x, made, one);
    const OnStream beside(Stream::messages);  // not awaited by the work
    cuda::wait_for_event(Stream::messages, cuda::record_event(Stream::compute));
    nemocube::add_elements(x, x, one);
  });
  double want = 0;
  for (int i = 0; i < 3; ++i) {
    {
      const OnStream beside(Stream::messages);
      nemocube::add_elements(x, x, one);
    }
    graph->launch();
    want = (want + 1 + 1) * 2 + 2;
    const OnStream beside(Stream::communication);
    nemocube::add_elements(x, x, one);
    cuda::wait_for_event(Stream::messages, cuda::record_event(Stream::communication));
    want += 1;
  }
  cuda::synchronize();
  CHECK(all_are(x, want));
}

TEST_CASE(
    "cuda graphs: what a graph holds counts as memory in use, and what it reads lives as long as it does" *
    doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  Allocator& memory = allocator(Device::cuda);
  const std::int64_t before = memory.stats().current_bytes;
  {
    const Tensor x = full(1);
    Tensor last = full(5);
    const auto graph = cuda::capture_graph([&] {
      const Tensor a = Tensor::empty(x.shape(), x.dtype(), x.device());
      nemocube::add_elements(a, x, last);
      const Tensor b = Tensor::empty(x.shape(), x.dtype(), x.device());
      nemocube::add_elements(b, a, x);
      x.copy_from(b);
      last = Tensor();
    });
    CHECK(graph->bytes() == 2 * x.bytes());
    CHECK(memory.stats().current_bytes == before + 2 * x.bytes());
    memory.reset_peak();
    graph->launch();
    CHECK(memory.stats().peak_bytes == before + 4 * x.bytes());
    CHECK(memory.stats().reserved_bytes >= memory.stats().current_bytes);
    const Tensor other = full(9);
    graph->launch();
    CHECK(all_are(x, 2 * (2 * 1 + 5) + 5));
    CHECK(all_are(other, 9));
  }
  CHECK(memory.stats().current_bytes == before);
}

TEST_CASE("cuda graphs: work that needs the host is refused by name, and nothing of it runs" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const Tensor x = full(1);
  const std::int64_t launches = cuda::launches(), held = allocator(Device::cuda).stats().current_bytes;
  const auto refusal = [&](const std::function<void()>& rest) {
    return message_of([&] {
      cuda::capture_graph([&] {
        nemocube::add_elements(x, x, x);
        const Tensor copy = x.clone();
        nemocube::add_elements(x, x, copy);
        rest();
      });
    });
  };
  const HostWaitName name("number of rows");
  CHECK(refusal([&] { x.to_vector(); }).find("waits for the device: number of rows") != std::string::npos);
  CHECK(refusal([&] {
          x.copy_from(Tensor::zeros(x.shape(), x.dtype(), Device::cpu));
        }).find("values of the host go to the device") != std::string::npos);
  CHECK(refusal([&] { cuda::synchronize(); }).find("waits for all work") != std::string::npos);
  CHECK(refusal([&] { cuda::Staging staging(64); }).find("between host and device") != std::string::npos);
  CHECK(refusal([] {
          CHECK_FALSE(cuda::event_reached(cuda::record_event(Stream::compute)));
          fail("something");
        }) == "something");
  CHECK(refusal([] { fail("something else"); }) == "something else");
  CHECK(cuda::launches() == launches);
  CHECK(allocator(Device::cuda).stats().current_bytes == held);
  CHECK(all_are(x, 1));
  const auto graph = cuda::capture_graph([&] { nemocube::add_elements(x, x, x); });
  graph->launch();
  CHECK(all_are(x, 2));
}

TEST_CASE("cuda graphs: captured work leaves no tensor behind" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  Tensor left;
  CHECK_THROWS_WITH_AS(cuda::capture_graph([&] { left = full(1); }), doctest::Contains("leaves 1 tensor"),
                       std::logic_error);
  left = Tensor();
  CHECK(cuda::capture_graph([] { static_cast<void>(full(1)); })->launches() == 1);
}

TEST_CASE("cuda graphs: without enough memory the error says what is wanted, and graphs work once there is" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const std::int64_t most = cuda::describe_device().memory_bytes / 10 * 6;
  const auto taken = [most] { return Tensor::empty({most}, DType::u8, Device::cuda); };
  const auto run = [&] { cuda::capture_graph([&] { static_cast<void>(taken()); })->launch(); };
  std::optional<Tensor> other = taken();
  const std::string message = message_of(run);
  CAPTURE(message);
  CHECK(message.starts_with("out of memory on cuda: a "));  // tensor of the capture, or graph of the launch
  CHECK(message.find(cat(" wants ", bytes_text(most), "; tensors hold ")) != std::string::npos);
  other.reset();
  run();
  cuda::synchronize();
}
