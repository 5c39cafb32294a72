#include "ops/global_norm/global_norm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "core/parallel_for.h"
#include "core/profile.h"

namespace nemocube {
namespace {

constexpr std::int64_t segment = 1 << 14;
constexpr std::int64_t segments_per_thread = 2;

// Lane l sums the elements with index l modulo `lanes`; a fixed order that vectorises.
template <class T>
double sum_squares(const T* __restrict x, std::int64_t n, double scale) {
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

double sum_pieces(const std::vector<Piece>& pieces, double scale) {
  std::vector<double> partial(pieces.size());
  parallel_for(static_cast<std::int64_t>(pieces.size()), segments_per_thread,
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t i = first; i < last; ++i) {
                   const Piece& p = pieces[static_cast<std::size_t>(i)];
                   partial[static_cast<std::size_t>(i)] =
                       visit_float("global_norm", p.tensor->dtype(), [&](auto tag) {
                         using T = typename decltype(tag)::type;
                         return sum_squares(p.tensor->data<T>() + p.start, p.count, scale);
                       });
                 }
               });
  double sum = 0;
  for (const double p : partial) sum += p;
  return sum;
}

// The largest magnitude; NaN or infinity when there is one.
double largest_of(const std::vector<Tensor>& tensors) {
  double most = 0;
  for (const Tensor& t : tensors)
    for (const double v : t.reshape({-1}).to_vector()) {
      if (!std::isfinite(v)) return v;
      most = std::max(most, std::abs(v));
    }
  return most;
}

}  // namespace

NormResult global_norm(std::span<const Tensor> tensors) {
  static Zone zone("global_norm");
  const ZoneTimer timer(zone);
  std::vector<Tensor> whole;
  bool any_f64 = false;
  for (const Tensor& t : tensors) {
    require(t.defined(), "global_norm: tensor ", &t - tensors.data(), " is undefined");
    require(is_float(t.dtype()), "global_norm: want f32, f64 or bf16, got ", t.dtype());
    any_f64 = any_f64 || t.dtype() == DType::f64;
    if (t.numel() > 0) whole.push_back(t.as_contiguous());
  }
  std::vector<Piece> pieces;
  for (const Tensor& t : whole)
    for (std::int64_t start = 0; start < t.numel(); start += segment)
      pieces.push_back({&t, start, std::min(segment, t.numel() - start)});

  const double sum = sum_pieces(pieces, 1);
  const bool comfortable = sum > 0x1p-900 && sum < 0x1p1000;
  if (comfortable || !any_f64) return {std::sqrt(sum), std::isfinite(sum)};
  const double most = largest_of(whole);
  if (!std::isfinite(most)) return {std::sqrt(sum), false};
  if (most == 0) return {};
  int exponent = 0;
  std::frexp(most, &exponent);
  exponent = std::max(exponent, -1000);  // keeps the scale itself finite
  return {std::ldexp(std::sqrt(sum_pieces(pieces, std::ldexp(1.0, -exponent))), exponent), true};
}

double clip_coefficient(double norm, double max_norm) {
  require(max_norm > 0, "clip_coefficient: want a positive maximum norm, got ", max_norm);
  const double coefficient = max_norm / (norm + 1e-6);
  return coefficient < 1 ? coefficient : 1;
}

}  // namespace nemocube
