#include "ops/adamw/adamw.h"

#include <algorithm>
#include <cmath>

#include "core/parallel_for.h"
#include "core/profile.h"

namespace nemocube {
namespace {

// Threads share out whole blocks, so that an element always takes the same path through the vector loop.
constexpr std::int64_t block = 4096, blocks_per_thread = 8;

template <class T>
struct Factors {
  T scale, beta1, rest1, beta2, rest2, eps, keep, l2, rate, root;
  explicit Factors(const AdamWOptions& o) {
    const auto t = static_cast<double>(o.step);
    scale = static_cast<T>(o.grad_scale);
    beta1 = static_cast<T>(o.beta1);
    rest1 = static_cast<T>(1 - o.beta1);
    beta2 = static_cast<T>(o.beta2);
    rest2 = static_cast<T>(1 - o.beta2);
    eps = static_cast<T>(o.eps);
    keep = static_cast<T>(o.decoupled ? 1 - o.lr * o.weight_decay : 1);
    l2 = static_cast<T>(o.decoupled ? 0 : o.weight_decay);
    rate = static_cast<T>(o.lr / (1 - std::pow(o.beta1, t)));
    root = static_cast<T>(1 / std::sqrt(1 - std::pow(o.beta2, t)));
  }
};

template <bool with_l2, bool with_copy, class T>
void update(T* __restrict w, T* __restrict m, T* __restrict v, const T* __restrict grad,
            bf16* __restrict copy, std::int64_t n, const Factors<T>& f) {
  for (std::int64_t i = 0; i < n; ++i) {
    T g = grad[i] * f.scale;
    if constexpr (with_l2) g += f.l2 * w[i];
    const T mean = f.beta1 * m[i] + f.rest1 * g;
    const T square = f.beta2 * v[i] + f.rest2 * g * g;
    const T next = w[i] * f.keep - f.rate * (mean / (std::sqrt(square) * f.root + f.eps));
    m[i] = mean;
    v[i] = square;
    w[i] = next;
    if constexpr (with_copy) copy[i] = bf16(static_cast<float>(next));
  }
}

template <bool with_l2, bool with_copy, class T>
void step_as(const Tensor& master, const Tensor& exp_avg, const Tensor& exp_avg_sq, const Tensor& grad,
             const Tensor& model_copy, const AdamWOptions& options) {
  const Factors<T> factors(options);
  const std::int64_t n = master.numel();
  T *w = master.data<T>(), *m = exp_avg.data<T>(), *v = exp_avg_sq.data<T>();
  const T* g = grad.data<T>();
  bf16* copy = with_copy ? model_copy.data<bf16>() : nullptr;
  parallel_for((n + block - 1) / block, blocks_per_thread, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t begin = first * block, count = std::min(last * block, n) - begin;
    update<with_l2, with_copy>(w + begin, m + begin, v + begin, g + begin, with_copy ? copy + begin : nullptr,
                               count, factors);
  });
}

template <class T>
void choose(const Tensor& master, const Tensor& exp_avg, const Tensor& exp_avg_sq, const Tensor& grad,
            const Tensor& model_copy, const AdamWOptions& o) {
  const bool l2 = !o.decoupled && o.weight_decay != 0, copy = model_copy.defined();
  auto* step = l2 ? (copy ? step_as<true, true, T> : step_as<true, false, T>)
                  : (copy ? step_as<false, true, T> : step_as<false, false, T>);
  step(master, exp_avg, exp_avg_sq, grad, model_copy, o);
}

void check(const char* what, const Tensor& t, const Tensor& master, DType dtype) {
  check_dtype(what, t, dtype);
  check_shape(what, t, master.shape());
  require(t.contiguous(), what, ": want a contiguous tensor");
}

}  // namespace

void adamw_step(const Tensor& master, const Tensor& exp_avg, const Tensor& exp_avg_sq, const Tensor& grad,
                const Tensor& model_copy, const AdamWOptions& options) {
  require(master.defined() && (master.dtype() == DType::f32 || master.dtype() == DType::f64),
          "adamw: master: want f32 or f64, got ", master.dtype());
  check("adamw: master", master, master, master.dtype());
  check("adamw: exp_avg", exp_avg, master, master.dtype());
  check("adamw: exp_avg_sq", exp_avg_sq, master, master.dtype());
  check("adamw: grad", grad, master, master.dtype());
  if (model_copy.defined()) check("adamw: model_copy", model_copy, master, DType::bf16);
  require(options.step >= 1, "adamw: steps are counted from 1, got ", options.step);
  for (const double beta : {options.beta1, options.beta2})
    require(beta >= 0 && beta < 1, "adamw: want betas in [0, 1), got ", beta);
  if (master.numel() == 0) return;

  static Zone zone("adamw/step");
  const ZoneTimer timer(zone);
  if (master.dtype() == DType::f64)
    choose<double>(master, exp_avg, exp_avg_sq, grad, model_copy, options);
  else
    choose<float>(master, exp_avg, exp_avg_sq, grad, model_copy, options);
}

}  // namespace nemocube
