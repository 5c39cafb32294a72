#pragma once
#include "core/autograd.h"

/// What the kernels of the norms of rows, ops/rmsnorm and ops/layernorm, share. The kernels are in
/// row_norm_cpu.h and row_norm.cuh.
///     n = (x - mean) inv,   y = n (offset + w) + b
namespace nemocube {

/// plain: y = n w, with n = x inv. offset: y = n (offset + w). unweighted: y = n. centred: with a mean and
/// perhaps a bias, without an offset. The first three have the same operands, but that the unweighted form
/// has no weight: form_of() chooses among them.
enum class NormForm { plain, offset, unweighted, centred };

/// The form of a norm without a mean.
inline NormForm form_of(const Tensor& weight, double offset) {
  if (!weight) return NormForm::unweighted;
  return offset == 0 ? NormForm::plain : NormForm::offset;
}

/// Operands of a forward pass. mean and inv: [rows], f32 (f64 with f64). With `residual`, sum = x + residual
/// is written and normed; `sum` and `residual` are both undefined otherwise. Only the centred form has a mean
/// and, perhaps, a bias.
struct NormForward {
  Tensor y, mean, inv, sum, x, residual, weight, bias;
  double eps = 0, offset = 0;
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    for (const Tensor* t : {&y, &mean, &inv, &sum, &x, &residual, &weight, &bias}) fn(*t);
  }
};

/// Operands of a backward pass: dx = (norm backward of dy) + extra. `extra` may be undefined. dx, dw.to and
/// db.to may be undefined: they are then not computed. dx may be dy or extra.
struct NormBackward {
  Tensor dx;
  Output dw, db;
  Tensor dy, extra, x, weight, mean, inv;
  double offset = 0;
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    for (const Tensor* t : {&dx, &dw.to, &db.to, &dy, &extra, &x, &weight, &mean, &inv}) fn(*t);
  }
};

/// The operands of a forward pass, with new tensors for its results.
inline NormForward norm_forward_operands(NormForm form, const Tensor& x, const Tensor& residual,
                                         const Tensor& weight, double eps) {
  const auto of_rows = [&] { return Tensor::empty({x.rows()}, accumulate_dtype(x.dtype()), x.device()); };
  const auto like_x = [&] { return Tensor::empty(x.shape(), x.dtype(), x.device()); };
  return {.y = like_x(),
          .mean = form == NormForm::centred ? of_rows() : Tensor(),
          .inv = of_rows(),
          .sum = residual ? like_x() : Tensor(),
          .x = x,
          .residual = residual,
          .weight = weight,
          .bias = {},
          .eps = eps};
}

}  // namespace nemocube
