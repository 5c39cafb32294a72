#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "core/parallel_for.h"
#include "ops/global_norm/global_norm_kernels.h"

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

}  // namespace

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

double largest_magnitude(std::span<const Tensor> tensors) {
  double most = 0;
  for (const Tensor& t : tensors)
    for (const double v : t.reshape({-1}).to_vector()) {
      if (!std::isfinite(v)) return v;
      most = std::max(most, std::abs(v));
    }
  return most;
}

}  // namespace nemocube::cpu
