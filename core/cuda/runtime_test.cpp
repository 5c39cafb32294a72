#include "core/cuda/runtime.h"

#include <doctest/doctest.h>

#include <thread>

#include "core/add.h"
#include "core/allocation_owner.h"
#include "core/kernel.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

Tensor to_cuda(const Tensor& t) { return t.to(Device::cuda); }

}  // namespace

TEST_CASE("cuda: tensors travel to the device and back" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16})
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{3, 0}, Shape{1}, Shape{5, 7}, Shape{2, 3, 33}}) {
      CAPTURE(dtype);
      CAPTURE(shape);
      const Tensor host = random_tensor(shape, dtype, 1), device = to_cuda(host);
      CHECK(device.device() == Device::cuda);
      CHECK_BITS(device, host);
      CHECK_BITS(device.clone(), host);
      CHECK(device.to_vector() == host.to_vector());
      CHECK(device.to(Device::cuda).same_storage(device) == device.defined());
    }
  const Tensor ids = Tensor::from<std::int64_t>({-1, 2, std::int64_t{1} << 40}, {3});
  CHECK_BITS(to_cuda(ids), ids);
  CHECK(to_cuda(ids).narrow(0, 2, 1).item<std::int64_t>() == std::int64_t{1} << 40);
}

TEST_CASE("cuda: copies of windows, and between dtypes" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const Tensor wide = random_tensor({6, 20}, DType::f32, 1), device = to_cuda(wide);
  const Tensor window = wide.narrow(-1, 3, 9), on_device = device.narrow(-1, 3, 9);
  CHECK_BITS(on_device, window);
  CHECK_BITS(on_device.to(Device::cpu), window.clone());
  const Tensor filled = Tensor::zeros({6, 20}, DType::f32, Device::cuda);
  filled.narrow(-1, 3, 9).copy_from(window);                     // host to device
  filled.narrow(-1, 12, 8).copy_from(device.narrow(-1, 12, 8));  // on the device
  CHECK_BITS(filled.narrow(-1, 3, 17), wide.narrow(-1, 3, 17));
  for (const double v : filled.narrow(-1, 0, 3).to_vector()) CHECK(v == 0);
  for (const DType to : {DType::f64, DType::bf16}) CHECK_BITS(on_device.to(to), window.to(to));
  for (const DType from : {DType::f32, DType::f64, DType::bf16})
    for (const DType to : {DType::f32, DType::f64, DType::bf16}) {
      CAPTURE(from);
      CAPTURE(to);
      const Tensor x = window.to(from), want = x.to(to);
      CHECK_BITS(to_cuda(x).to(to), want);
      const Tensor up = Tensor::empty({6, 9}, to, Device::cuda),
                   down = Tensor::empty({6, 9}, to, Device::cpu);
      up.copy_from(x);
      down.copy_from(to_cuda(x));
      CHECK_BITS(up, want);
      CHECK_BITS(down, want);
    }
}

TEST_CASE("cuda: fill and zero, windows too, in every dtype" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i32, DType::i64, DType::u8}) {
    CAPTURE(dtype);
    const auto filled = [dtype](Device device) {
      const Tensor t = Tensor::empty({4, 300}, dtype, device);
      t.fill(3);
      t.narrow(-1, 7, 265).fill(2);
      t.narrow(-1, 9, 1).zero();
      return t;
    };
    CHECK_BITS(filled(Device::cuda), filled(Device::cpu));
  }
}

TEST_CASE("cuda: sums of elements have the CPU's bits" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const DType other : {DType::f32, DType::bf16})
      for (const std::int64_t start : {0, 1, 8})
        for (const std::int64_t cols : {1, 8, 21}) {
          CAPTURE(dtype);
          CAPTURE(other);
          CAPTURE(start);
          CAPTURE(cols);
          const auto sum = [&](Device device) {
            const Tensor a = random_tensor({5, 32}, dtype, 1).to(device).narrow(-1, start, cols),
                         b = random_tensor({5, 32}, other, 2).to(device).narrow(-1, start, cols);
            const Tensor y = Tensor::empty({5, cols}, dtype, device);
            nemocube::add_elements(y, a, b);
            nemocube::add_elements(a, a, b);  // in place
            CHECK_BITS(a, y);
            return y;
          };
          CHECK_BITS(sum(Device::cuda), sum(Device::cpu));
        }
}

TEST_CASE("sums of a step, in f64 and i64, have the CPU's bits on every device" *
          doctest::test_suite("cuda")) {
  const auto integers = [](std::int64_t first) {
    std::vector<std::int64_t> values(300);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] =
          first + (std::int64_t{1} << 53) * static_cast<std::int64_t>(i % 3) - static_cast<std::int64_t>(i);
    return Tensor::from(values, {3, 100});
  };
  const auto same_everywhere = [](const Tensor& a, const Tensor& b) {
    const auto sum = [&](Device device) {
      const Tensor p = a.clone().to(device).narrow(-1, 1, 99), q = b.to(device).narrow(-1, 0, 99),
                   y = Tensor::empty(p.shape(), p.dtype(), device);
      nemocube::add_elements(y, p, q);
      nemocube::add_elements(p, p, q);  // in place
      CHECK_BITS(p, y);
      return y.to(Device::cpu);
    };
    for (const Device device : test_devices()) {
      CAPTURE(device);
      CHECK_BITS(sum(device), sum(Device::cpu));
    }
  };
  for (const DType other : {DType::f64, DType::f32, DType::bf16})
    same_everywhere(random_tensor({3, 100}, DType::f64, 1), random_tensor({3, 100}, other, 2));
  for (const DType dtype : {DType::f32, DType::bf16})
    same_everywhere(random_tensor({3, 100}, dtype, 1), random_tensor({3, 100}, DType::f64, 2));
  same_everywhere(integers(0), integers(5));
  const Tensor whole = Tensor::from<std::int64_t>({(std::int64_t{1} << 60) + 1}, {1});
  nemocube::add_elements(whole, whole, whole);
  CHECK(whole.item<std::int64_t>() == (std::int64_t{1} << 61) + 2);  // no float on the way
}

TEST_CASE("cuda: the allocator counts what tensors hold" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  Allocator& memory = allocator(Device::cuda);
  const std::int64_t before = memory.stats().current_bytes;
  memory.reset_peak();
  {
    const Tensor a = Tensor::empty({1000}, DType::f32, Device::cuda);
    CHECK(memory.stats().current_bytes == before + 4000);
    const Tensor b = Tensor::zeros({3}, DType::f64, Device::cuda);
    CHECK(memory.stats().current_bytes == before + 4024);
    CHECK(memory.stats().reserved_bytes >= memory.stats().current_bytes);
  }
  CHECK(memory.stats().current_bytes == before);
  CHECK(memory.stats().peak_bytes == before + 4024);
  memory.release_cache();
  const std::string message =
      message_of([] { Tensor::empty({std::int64_t{1} << 50}, DType::u8, Device::cuda); });
  CAPTURE(message);
  CHECK(message.starts_with("out of memory on cuda: a tensor wants 1.13 PB; tensors hold "));
  CHECK(Tensor::scalar(2, DType::f32, Device::cuda).item<float>() == 2);  // the device goes on
}

TEST_CASE("allocator: out of memory lists the largest owners, on every device" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    allocator(device).release_cache();
    CAPTURE(device);
    const auto text = [device] {
      return message_of([device] { Tensor::empty({std::int64_t{1} << 50}, DType::u8, device); });
    };
    const auto bytes = [device](const char* owner, std::int64_t mibs) {
      const AllocationOwner named(owner);
      return Tensor::empty({mibs << 20}, DType::u8, device);
    };
    const Tensor a = bytes("test weights", 4), b = bytes("test block 1", 6), c = bytes("test weights", 4);
    {
      const AllocationOwner outer("outer");
      const Tensor d = bytes("inner", 5);
      CHECK(text().find(" (test weights 8.39 MB, test block 1 6.29 MB, inner 5.24 MB") != std::string::npos);
      CHECK(text().find("outer") == std::string::npos);
    }
    CAPTURE(text());
    CHECK(text().find("inner") == std::string::npos);
    b.storage()->release();
    CHECK(text().find("test block 1") == std::string::npos);
    b.storage()->restore();  // outside of the scope that named it
    CHECK(text().find(" (test weights 8.39 MB, test block 1 6.29 MB") != std::string::npos);
  }
}

TEST_CASE("cuda: host code does not touch tensors of the device" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const Tensor t = Tensor::zeros({2}, DType::f32, Device::cuda);
  CHECK_THROWS_WITH_AS(
      t.data<float>(),
      "internal error: tensor data of shape [2] wanted in host memory, is on cuda, in zone none",
      std::logic_error);
}

TEST_CASE("cuda: every thread can use the device, and no other device is chosen later" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const Tensor t = to_cuda(random_tensor({100}, DType::f32, 1));
  Tensor copy;
  std::thread([&] { copy = t.clone(); }).join();
  CHECK_BITS(copy, t);
  CHECK(message_of([] { cuda::use_device(1000); }).starts_with("no CUDA device 1000: there are "));
  CHECK_NOTHROW(cuda::use_device(0));
  CHECK(cuda::describe_device().multiprocessors > 0);
}

TEST_CASE("cuda: kernels that the module does not have") {
  CHECK_FALSE(runs_on_cuda("rms"));
  CHECK_FALSE(runs_on_cuda("unheard_of"));
  if (!cuda::unavailable().empty()) return;
  const cuda::Function<void(int)> unheard("unheard_of/forward"), other_signature("core/synchronize");
  CHECK_THROWS_AS(unheard(1), std::logic_error);
  CHECK_THROWS_AS(other_signature(1), std::logic_error);
}
