#pragma once
#include <string>

#include "core/tensor.h"

/// The ruler of the tests.
namespace nemocube::testing {

/// |got - want| <= abs + rel |want|. NaN is never close.
struct Tol {
  double rel = 0, abs = 0;
};
bool close(double got, double want, Tol tol);

/// Tolerance of sums of n terms of typical size `magnitude`, stored in `dtype`, formed in its accumulation
/// type: two roundings of storage plus 8 sqrt(n) roundings of the accumulator.
Tol sum_tol(DType dtype, std::int64_t n, double magnitude = 1.0);

struct Verdict {
  bool ok = true;
  std::string message;  ///< worst element, its index, both values, and how many are off
  explicit operator bool() const { return ok; }
};
/// Elementwise, shapes must agree, any dtypes. CHECK(v.ok) with INFO(v.message), or CHECK_CLOSE below.
Verdict compare(const Tensor& got, const Tensor& want, Tol tol);
/// Same shape, dtype and bits.
Verdict compare_bits(const Tensor& got, const Tensor& want);
/// ||got - want|| / ||want|| (Frobenius; plain ||got|| when want is all zero). NaN when anything is NaN.
double relative_error(const Tensor& got, const Tensor& want);

/// Standard normal values times `scale`, the same for a (seed, shape) in every dtype up to rounding.
Tensor random_tensor(const Shape& shape, DType dtype, std::uint64_t seed, double scale = 1.0);

}  // namespace nemocube::testing

#define CHECK_CLOSE(got, want, tol)                                           \
  do {                                                                        \
    const auto verdict_ = ::nemocube::testing::compare((got), (want), (tol)); \
    CHECK_MESSAGE(verdict_.ok, verdict_.message);                             \
  } while (false)
#define CHECK_BITS(got, want)                                               \
  do {                                                                      \
    const auto verdict_ = ::nemocube::testing::compare_bits((got), (want)); \
    CHECK_MESSAGE(verdict_.ok, verdict_.message);                           \
  } while (false)
