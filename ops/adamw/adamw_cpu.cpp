#include <cmath>

#include "ops/adamw/adamw_kernels.h"
#include "ops/optimizer_step.h"

namespace nemocube::cpu {
namespace {

template <class T>
struct Factors : AdamWFactors<T> {
  T scale;
  Factors(const AdamWFactors<T>& of_range, double grad_scale)
      : AdamWFactors<T>(of_range), scale(static_cast<T>(grad_scale)) {}
};

template <bool with_l2, bool with_copy, class T>
bool update(T* __restrict w, T* __restrict m, T* __restrict v, const T* __restrict grad,
            bf16* __restrict copy, std::int64_t n, const Factors<T>& f) {
  FiniteCheck<T> check;
  for (std::int64_t i = 0; i < n; ++i) {
    T g = grad[i] * f.scale;
    if constexpr (with_l2) g += f.l2 * w[i];
    const T mean = f.beta1 * m[i] + f.rest1 * g;
    const T square = f.beta2 * v[i] + f.rest2 * g * g;
    const T next = w[i] * f.keep - f.rate * (mean / (std::sqrt(square) * f.root + f.eps));
    m[i] = mean;
    v[i] = square;
    check.add(mean);
    check.add(square);
    write_weight<with_copy>(w, copy, i, next, check);
  }
  return check.all_finite();
}

template <bool with_l2, bool with_copy, class T>
bool step_as(const AdamWRange& r, const Factors<T>& factors) {
  T *w = r.master.data<T>(), *m = r.exp_avg.data<T>(), *v = r.exp_avg_sq.data<T>();
  const T* g = r.grad.data<T>();
  bf16* copy = with_copy ? r.model_copy.data<bf16>() : nullptr;
  return step_in_blocks(r.master.numel(), [&](std::int64_t first, std::int64_t count) {
    return update<with_l2, with_copy>(w + first, m + first, v + first, g + first,
                                      with_copy ? copy + first : nullptr, count, factors);
  });
}

template <class T>
bool step_range(const AdamWRange& r, const AdamWOptions& o, const double* schedule, double grad_scale) {
  const Factors<T> factors({o, schedule, r}, grad_scale);
  const bool l2 = !o.decoupled && schedule[1] * r.decay_factor != 0, copy = r.model_copy.defined();
  auto* step = l2 ? (copy ? step_as<true, true, T> : step_as<true, false, T>)
                  : (copy ? step_as<false, true, T> : step_as<false, false, T>);
  return step(r, factors);
}

}  // namespace

void adamw_step(std::span<const AdamWRange> ranges, const AdamWOptions& options, const Tensor& schedule,
                const UpdateGate& gate) {
  step_ranges(ranges, schedule, gate, [&]<class T>(TypeTag<T>, const AdamWRange& r, auto... numbers) {
    return step_range<T>(r, options, numbers...);
  });
}

}  // namespace nemocube::cpu
