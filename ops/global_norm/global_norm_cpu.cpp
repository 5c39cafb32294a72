#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "core/parallel_for.h"
#include "ops/global_norm/global_norm_kernels.h"
#include "ops/global_norm/square_sum.h"

namespace nemocube::cpu {
namespace {

constexpr std::int64_t segment = 1 << 14;
constexpr std::int64_t segments_per_thread = 2;

// Lane l sums the elements whose index is l modulo `lanes`: a fixed order that the compiler can vectorise.
template <class T>
double sum_squares_of(const T* __restrict x, std::int64_t n, double scale) {
  constexpr std::int64_t lanes = 32;
  std::array<double, lanes> lane{};
  double* __restrict s = lane.data();
  const auto square = [scale](T v) {
    const double d = static_cast<double>(v) * scale;
    return d * d;
  };
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (std::int64_t l = 0; l < lanes; ++l) s[l] += square(x[i + l]);
  for (; i < n; ++i) s[i % lanes] += square(x[i]);
  for (std::int64_t half = lanes / 2; half > 0; half /= 2)
    for (std::int64_t l = 0; l < half; ++l) s[l] += s[l + half];
  return s[0];
}

struct Piece {
  const Tensor* tensor;
  std::int64_t start, count;
};

// Sum of (scale x)^2 over all elements x of all tensors.
double sum_squares(std::span<const Tensor> tensors, double scale) {
  std::vector<Piece> pieces;
  for (const Tensor& t : tensors)
    for (std::int64_t start = 0; start < t.numel(); start += segment)
      pieces.push_back({&t, start, std::min(segment, t.numel() - start)});
  std::vector<double> partial(pieces.size());
  parallel_for(static_cast<std::int64_t>(pieces.size()), segments_per_thread,
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t i = first; i < last; ++i) {
                   const Piece& p = pieces[static_cast<std::size_t>(i)];
                   partial[static_cast<std::size_t>(i)] =
                       visit_float("global_norm", p.tensor->dtype(), [&]<class T>(TypeTag<T>) {
                         return sum_squares_of(p.tensor->data<T>() + p.start, p.count, scale);
                       });
                 }
               });
  double sum = 0;
  for (const double p : partial) sum += p;
  return sum;
}

// The largest |x|; a NaN or infinity when there is one.
double largest_magnitude(std::span<const Tensor> tensors) {
  double most = 0;
  for (const Tensor& t : tensors)
    for (const double v : t.reshape({-1}).to_vector()) {
      if (!std::isfinite(v)) return v;
      most = std::max(most, std::abs(v));
    }
  return most;
}

SquareSum square_sum(std::span<const Tensor> tensors) {
  const double sum = sum_squares(tensors, 1);
  const bool comfortable = sum > 0x1p-900 && sum < 0x1p1000;
  const bool any_f64 = std::ranges::any_of(tensors, [](const Tensor& t) { return t.dtype() == DType::f64; });
  if (comfortable || !any_f64) return {sum, 0, std::isfinite(sum)};
  const double most = largest_magnitude(tensors);
  if (!std::isfinite(most)) return {sum, 0, false};
  if (most == 0) return {};
  int exponent = 0;
  std::frexp(most, &exponent);
  exponent = std::max(exponent, -1000);  // keeps the scale itself finite
  return {sum_squares(tensors, std::ldexp(1.0, -exponent)), exponent, true};
}

}  // namespace

void sum_of_squares(const Tensor& sum, std::span<const Tensor> tensors) {
  write_square_sum(sum.data<double>(), square_sum(tensors));
}

void add_square_sums(const Tensor& sum, const Tensor& parts) {
  SquareSum all;
  for (std::int64_t r = 0; r < parts.rows(); ++r) all = all + read_square_sum(parts.row<double>(r));
  write_square_sum(sum.data<double>(), all);
}

void clip_decision(const Tensor& decision, const Tensor& square_sum, const Tensor& loss_sum,
                   double max_norm) {
  write_decision(decision.data<double>(), read_square_sum(square_sum.data<double>()), loss_sum.item<double>(),
                 max_norm);
}

}  // namespace nemocube::cpu
