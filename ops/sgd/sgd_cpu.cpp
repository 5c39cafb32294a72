#include "ops/optimizer_step.h"
#include "ops/sgd/sgd_kernels.h"

namespace nemocube::cpu {
namespace {

template <class T>
struct Factors {
  T rate, scale, l2;
  T keep;       // buffer = keep buffer + g
  T from_grad;  // d = from_grad g + from_buffer buffer
  T from_buffer;
};

template <bool with_buffer, bool with_copy, class T>
bool update(T* __restrict w, T* __restrict buffer, const T* __restrict grad, bf16* __restrict copy,
            std::int64_t n, const Factors<T>& f, bool first) {
  FiniteCheck<T> check;
  for (std::int64_t i = 0; i < n; ++i) {
    const T g = grad[i] * f.scale + f.l2 * w[i];
    T direction = g;
    if constexpr (with_buffer) {
      const T sum = first ? g : f.keep * buffer[i] + g;
      buffer[i] = sum;
      check.add(sum);
      direction = f.from_grad * g + f.from_buffer * sum;
    }
    write_weight<with_copy>(w, copy, i, w[i] - f.rate * direction, check);
  }
  return check.all_finite();
}

template <bool with_buffer, bool with_copy, class T>
bool step_as(const SgdRange& r, const SgdOptions& o, const double* schedule, double grad_scale) {
  const Factors<T> factors{
      .rate = static_cast<T>(schedule[0] * r.lr_factor),
      .scale = static_cast<T>(grad_scale),
      .l2 = static_cast<T>(schedule[1] * r.decay_factor),
      .keep = static_cast<T>(o.momentum),
      .from_grad = static_cast<T>(o.nesterov ? 1 : 0),
      .from_buffer = static_cast<T>(o.nesterov ? o.momentum : 1),
  };
  const bool first_step = schedule[2] != 0;
  T* w = r.master.data<T>();
  const T* g = r.grad.data<T>();
  T* buffer = with_buffer ? r.momentum_buffer.data<T>() : nullptr;
  bf16* copy = with_copy ? r.model_copy.data<bf16>() : nullptr;
  return step_in_blocks(r.master.numel(), [&](std::int64_t first, std::int64_t count) {
    return update<with_buffer, with_copy>(w + first, with_buffer ? buffer + first : nullptr, g + first,
                                          with_copy ? copy + first : nullptr, count, factors, first_step);
  });
}

template <class T>
bool step_range(const SgdRange& r, const SgdOptions& o, const double* schedule, double grad_scale) {
  const bool copy = r.model_copy.defined();
  auto* step = o.momentum != 0 ? (copy ? step_as<true, true, T> : step_as<true, false, T>)
                               : (copy ? step_as<false, true, T> : step_as<false, false, T>);
  return step(r, o, schedule, grad_scale);
}

}  // namespace

void sgd_step(std::span<const SgdRange> ranges, const SgdOptions& options, const Tensor& schedule,
              const UpdateGate& gate) {
  step_ranges(ranges, schedule, gate, [&]<class T>(TypeTag<T>, const SgdRange& r, auto... numbers) {
    return step_range<T>(r, options, numbers...);
  });
}

}  // namespace nemocube::cpu
