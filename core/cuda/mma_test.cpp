#include "core/cuda/mma_test_kernel.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/devices.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

/// Small integers, so that sums are exact in any order.
Tensor integers(std::int64_t rows, std::int64_t n, std::uint64_t seed) {
  std::vector<double> values = random_tensor({rows, n}, DType::f64, seed).to_vector();
  for (double& v : values) v = std::clamp(std::round(3 * v), -3.0, 3.0);
  return Tensor::from<double>(values, {rows, n}).to(DType::bf16);
}

/// The f32 product of two matrices of n x n; rows that `a` and `b` lack are zero.
Tensor product(const Tensor& a, bool a_transposed, const Tensor& b, bool b_transposed, std::int64_t n) {
  const auto element = [n](const Tensor& t, bool transposed) {
    return [n, transposed, rows = t.rows(), values = t.to_vector()](std::int64_t i, std::int64_t j) {
      if (transposed) std::swap(i, j);
      return i < rows ? values[static_cast<std::size_t>(i * n + j)] : 0.0;
    };
  };
  const auto left = element(a, a_transposed), right = element(b, b_transposed);
  Tensor c = Tensor::zeros({n, n}, DType::f32, Device::cpu);
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < n; ++j)
      for (std::int64_t k = 0; k < n; ++k)
        c.data<float>()[i * n + j] += static_cast<float>(left(i, k) * right(k, j));
  return c;
}

}  // namespace

TEST_CASE("cuda: products on tensor cores from tiles in shared memory" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  for (const std::int64_t n : {16, 32, 48, 80, 128})
    for (const bool a_transposed : {false, true})
      for (const bool b_transposed : {false, true}) {
        CAPTURE(n);
        CAPTURE(a_transposed);
        CAPTURE(b_transposed);
        const Tensor a = integers(n - 3, n, 1), b = integers(n, n, 2), e = integers(n - 9, n, 3);
        const cuda::MmaTest t{.c = Tensor::empty({n, n}, DType::f32, Device::cuda),
                              .d = Tensor::empty({n, n}, DType::f32, Device::cuda),
                              .a = a.to(Device::cuda),
                              .b = b.to(Device::cuda),
                              .e = e.to(Device::cuda),
                              .a_transposed = a_transposed,
                              .b_transposed = b_transposed,
                              .pairs = n % 32 == 0};
        cuda::mma_test(t);
        const Tensor c = product(a, a_transposed, b, b_transposed, n);
        CHECK_BITS(t.c, c);
        CHECK_BITS(t.d, product(c.to(DType::bf16), false, e, false, n));
      }
}
