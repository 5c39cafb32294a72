#include "core/cuda/streams.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "core/add.h"
#include "core/cuda/runtime.h"
#include "core/cuda/test_tensors.h"
#include "core/host_wait.h"
#include "core/profile.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;
using cuda::OnStream;
using cuda::Stream;

namespace {

void order(Stream before, Stream after) { cuda::wait_for_event(after, cuda::record_event(before)); }

}  // namespace

TEST_CASE("streams: the innermost name counts, in its thread") {
  CHECK(OnStream::current() == Stream::compute);
  const OnStream outer(Stream::copies);
  {
    const OnStream inner(Stream::communication);
    CHECK(OnStream::current() == Stream::communication);
    std::thread([] { CHECK(OnStream::current() == Stream::compute); }).join();
  }
  CHECK(OnStream::current() == Stream::copies);
}

TEST_CASE("streams: events order the work of streams, and the host waits for none" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const Tensor x = full(0), one = full(1);
  reset_host_waits();
  for (int i = 0; i < 10; ++i) {
    order(Stream::compute, Stream::communication);
    {
      const OnStream beside(Stream::communication);
      nemocube::add_elements(x, x, one);
    }
    order(Stream::communication, Stream::copies);
    {
      const OnStream beside(Stream::copies);
      nemocube::add_elements(x, x, x);
    }
    order(Stream::copies, Stream::compute);
    nemocube::add_elements(x, x, one);
  }
  CHECK(host_waits().empty());
  double want = 0;
  for (int i = 0; i < 10; ++i) want = (want + 1) * 2 + 1;
  CHECK(all_are(x, want));
}

TEST_CASE("streams: an event is reached, or the host waits for it and counts that" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  CHECK(cuda::event_reached(cuda::Event()));
  CHECK_NOTHROW(cuda::wait_for_event(Stream::compute, cuda::Event()));
  const Tensor x = full(3);
  const cuda::Event event = cuda::record_event(Stream::compute);
  reset_host_waits();
  {
    const HostWaitName name("a test");
    cuda::host_wait_for_event(event);
    cuda::host_wait_for_event(cuda::Event());
  }
  CHECK(host_waits() == std::map<std::string, std::int64_t>{{"a test", 1}});
  CHECK(cuda::event_reached(event));
}

TEST_CASE("streams: memory that another stream uses serves no other tensor before that work is done" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  std::vector<Tensor> results;
  for (int i = 0; i < 12; ++i) {
    const Stream other = i % 2 ? Stream::communication : Stream::copies;
    const Tensor result = full(0);
    {
      const Tensor used = full(i + 1);
      order(Stream::compute, other);
      const OnStream beside(other);
      for (int slow = 0; slow < 4; ++slow) nemocube::add_elements(result, result, used);
      cuda::note_use(used, other);
      cuda::note_use(result, other);
    }
    const Tensor next = full(-1000), again = full(-2000);
    results.push_back(result);
  }
  cuda::synchronize();
  for (int i = 0; i < 12; ++i) CHECK(all_are(results[static_cast<std::size_t>(i)], 4 * (i + 1)));
}

TEST_CASE("streams: memory taken on another stream comes back to compute in order" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  std::vector<Tensor> results;
  for (int i = 0; i < 12; ++i) {
    Tensor made;
    {
      const OnStream beside(Stream::communication);
      made = full(i + 1);
    }
    order(Stream::communication, Stream::compute);
    results.push_back(made.clone());
    made = {};
    const OnStream beside(Stream::communication);
    full(-1000);
  }
  for (int i = 0; i < 12; ++i) CHECK(all_are(results[static_cast<std::size_t>(i)], i + 1));
}

TEST_CASE("copies to the device take the values at the call and do not wait" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const Tensor large =
      random_tensor({3, (std::int64_t{5} << 20) / 4 + 3}, DType::f32, 1);  // rows of over 5 MiB
  const Tensor window = random_tensor({1000, 60}, DType::f32, 2).narrow(-1, 3, 50);
  reset_host_waits();
  std::vector<Tensor> small;
  for (int i = 0; i < 20; ++i) {
    const Tensor source = Tensor::empty({700}, DType::f32, Device::cpu);
    source.fill(i);
    small.push_back(source.to(Device::cuda));
    source.fill(-1);
  }
  const Tensor there = large.to(Device::cuda), cut = there.narrow(-1, 7, 50).narrow(0, 0, 3);
  const Tensor wide = Tensor::zeros({1000, 70}, DType::f32, Device::cuda);
  wide.narrow(-1, 9, 50).copy_from(window);
  CHECK(host_waits().empty());
  CHECK_BITS(there, large);
  CHECK_BITS(cut, large.narrow(-1, 7, 50));
  CHECK_BITS(wide.narrow(-1, 9, 50), window);
  CHECK(all_are(wide.narrow(-1, 59, 11), 0));
  for (int i = 0; i < 20; ++i) CHECK(all_are(small[static_cast<std::size_t>(i)], i));
}

TEST_CASE("staging: blocks are handed out again after the event of their last use" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const std::int64_t bytes = elements * 4;
  const Tensor x = full(0), y = full(7);
  std::vector<Tensor> results;
  for (int i = 0; i < 12; ++i) {
    const Tensor to = full(-1);
    cuda::Staging staging(bytes);
    const std::vector<float> values(elements, static_cast<float>(i));
    std::memcpy(staging.data(), values.data(), static_cast<std::size_t>(bytes));
    cuda::upload(to, staging);
    results.push_back(to);
  }
  for (int i = 0; i < 12; ++i) CHECK(all_are(results[static_cast<std::size_t>(i)], i));
  cuda::synchronize();
  const std::int64_t held = cuda::staging_stats().reserved_bytes;
  CHECK(cuda::staging_stats().current_bytes == 0);
  for (int i = 0; i < 5; ++i) {
    cuda::Staging staging(bytes);
    CHECK(staging.bytes() >= bytes);
    CHECK(cuda::staging_stats().current_bytes == staging.bytes());
    cuda::host_wait_for_event(cuda::download(staging, y));
    float first = 0;
    std::memcpy(&first, staging.data(), sizeof first);
    CHECK(first == 7);
  }
  CHECK(cuda::staging_stats().reserved_bytes == held);
  cuda::Staging small(8);
  CHECK_THROWS_AS(cuda::upload(x, small), std::logic_error);
}

TEST_CASE("cuda: tensors of another device than the one in use are refused" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const Tensor t = full(1);
  const std::string message =
      message_of<std::logic_error>([] { Tensor::empty({3}, DType::f32, Device::cuda_number(1)); });
  CHECK(message.find("memory of CUDA device 1 wanted, while device 0 is in use") != std::string::npos);
}

TEST_CASE("zones: times on the device, and ranges for profilers" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  static Zone outer("test of zones, outer"), inner("test of zones, inner");
  const auto work = [&] {
    const ZoneTimer timer(outer);
    const Tensor t = full(1);
    for (int i = 0; i < 3; ++i) {
      const ZoneTimer within(inner);
      add_elements(t, t, t);
    }
    return t;
  };
  cuda::time_zones(false);
  work();
  reset_zones();
  cuda::time_zones(true);
  const Tensor t = work();
  CHECK(outer.calls() == 0);  // the device has not been asked yet
  const auto totals = zone_totals();
  cuda::time_zones(false);
  CHECK(totals.at(outer.name()).calls == 1);
  CHECK(totals.at(inner.name()).calls == 3);
  CHECK(totals.at(outer.name()).seconds >= totals.at(inner.name()).seconds);
  CHECK(all_are(t, 8));
  work();
  CHECK(outer.calls() == 2);  // by the clock of the host
  reset_zones();
}

TEST_CASE("a launch that is waited for names its own kernel" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  cuda::synchronise_launches(true);
  const Tensor t = full(2);
  add_elements(t, t, t);
  cuda::synchronise_launches(false);
  CHECK(all_are(t, 4));
}
