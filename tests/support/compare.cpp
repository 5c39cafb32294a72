#include "tests/support/compare.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "core/rng.h"

namespace nemocube::testing {

bool close(double got, double want, Tol tol) {
  if (got == want) return true;  // equal infinities
  return std::abs(got - want) <= tol.abs + tol.rel * std::abs(want);
}

Tol sum_tol(DType dtype, std::int64_t n, double magnitude) {
  const double store = dtype == DType::f64 ? 0x1p-53 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-24;
  const double acc = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
  const double root = std::sqrt(static_cast<double>(n < 1 ? 1 : n));
  return {2 * store, 8 * acc * root * magnitude};
}

Verdict compare(const Tensor& got, const Tensor& want, Tol tol) {
  if (!got.defined() || !want.defined()) return {false, "a tensor is undefined"};
  if (got.shape() != want.shape()) return {false, cat("shape ", got.shape(), ", want ", want.shape())};
  const auto g = got.to_vector(), w = want.to_vector();
  std::size_t worst = 0, off = 0;
  double worst_excess = -1;
  for (std::size_t i = 0; i < g.size(); ++i) {
    if (close(g[i], w[i], tol)) continue;
    ++off;
    const double error = std::abs(g[i] - w[i]);
    const double excess = std::isnan(error) ? std::numeric_limits<double>::infinity()
                                            : error / (tol.abs + tol.rel * std::abs(w[i]));
    if (excess > worst_excess) {
      worst_excess = excess;
      worst = i;
    }
  }
  if (off == 0) return {};
  return {false, cat(off, " of ", g.size(), " elements of ", got.shape(), " differ; worst at ", worst,
                     ": got ", g[worst], ", want ", w[worst], ", ", worst_excess, " times the tolerance")};
}

Verdict compare_bits(const Tensor& got, const Tensor& want) {
  if (got.shape() != want.shape() || got.dtype() != want.dtype())
    return {false, cat(got.dtype(), got.shape(), ", want ", want.dtype(), want.shape())};
  const Tensor a = got.as_contiguous().to(Device::cpu), b = want.as_contiguous().to(Device::cpu);
  const auto* p = reinterpret_cast<const unsigned char*>(a.host_bytes());
  const auto* q = reinterpret_cast<const unsigned char*>(b.host_bytes());
  for (std::int64_t i = 0; i < a.bytes(); ++i)
    if (p[i] != q[i]) {
      const auto at = static_cast<std::size_t>(i / size_of(a.dtype()));
      return {false, cat("bits differ first at element ", at, ": got ", a.to_vector()[at], ", want ",
                         b.to_vector()[at])};
    }
  return {};
}

double relative_error(const Tensor& got, const Tensor& want) {
  expect(got.shape() == want.shape(), "relative_error of ", got.shape(), " and ", want.shape());
  const auto g = got.to_vector(), w = want.to_vector();
  double diff = 0, norm = 0;
  for (std::size_t i = 0; i < g.size(); ++i) {
    diff += (g[i] - w[i]) * (g[i] - w[i]);
    norm += w[i] * w[i];
  }
  return norm == 0 ? std::sqrt(diff) : std::sqrt(diff / norm);
}

Tensor random_tensor(const Shape& shape, DType dtype, std::uint64_t seed, double scale) {
  Tensor t = Tensor::empty(shape, dtype, Device::cpu);
  fill_normal(t, RandomStream(seed, "test"), 0, scale);
  return t;
}

}  // namespace nemocube::testing
