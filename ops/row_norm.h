#pragma once
#include <memory>
#include <utility>

#include "ops/contribute.h"
#include "ops/residual_norm.h"
#include "ops/row_norm_kernels.h"

/// The common part of the norms of rows, ops/rmsnorm and ops/layernorm, besides
/// kernels: checks, and the recording on the tape.
namespace nemocube {

inline void check_normed(const char* op, const Tensor& x, double eps) {
  require(x.defined() && x.ndim() >= 1, op, ": x: want at least one dimension");
  require(is_float(x.dtype()), op, ": x: want f32, f64 or bf16, got ", x.dtype());
  require(x.cols() >= 1, op, ": x: want at least one column, got shape ", x.shape());
  require(eps >= 0, op, ": eps: want a value >= 0, got ", eps);
}
inline void check_norm_weight(const char* op, const Tensor& x, const Tensor& weight) {
  check_shape(cat(op, ": weight"), weight, {x.cols()});
  check_dtype(cat(op, ": weight"), weight, x.dtype());
}

inline void check_residual(const char* op, const Tensor& x, const Tensor& residual) {
  check_shape(cat(op, ": residual"), residual, x.shape());
  check_dtype(cat(op, ": residual"), residual, x.dtype());
}

/// Where a kernel writes the gradient of a parameter: nowhere when none is wanted. The caller then passes the
/// place to add_parameter_gradient().
inline Output parameter_gradient(const Var& parameter) {
  if (!parameter.needs_grad()) return {};
  const Tensor& p = parameter.value();
  return parameter.node()->leaf() ? parameter.node()->into()
                                  : Output{Tensor::empty(p.shape(), p.dtype(), p.device()), Into::set};
}
inline void add_parameter_gradient(const Var& parameter, const Output& written) {
  if (parameter.needs_grad() && !parameter.node()->leaf()) parameter.node()->add(written.to);
}

/// Lets the result of a norm be computed again (GradNode::again) from the tensors that its closure keeps. The
/// result is made once, at the first call, and lives until the closure runs.
template <class Make>
void compute_again(const Var& y, Make make) {
  y.node()->again = [made = std::make_shared<Tensor>(), make = std::move(make)] {
    if (!*made) *made = make();
    return *made;
  };
}

/// Records the backward pass of y = norm(x). backward(dx, dy, extra) runs the kernel; see NormBackward.
template <class Backward>
void record_norm(Tape& tape, const char* name, const Var& x, const Var& y, Backward backward) {
  tape.record(name, [nx = x.node(), out = y.node(), backward = std::move(backward)] {
    out->again = {};
    if (!out->filled()) return;
    const Tensor dy = out->take();
    const Tensor dx = nx ? contribution_over(nx.get(), dy) : Tensor();
    backward(dx, dy, Tensor());
    if (nx) nx->add(dx);
  });
}

/// The same of a norm of x + residual.
template <class Backward>
void record_residual_norm(Tape& tape, const char* name, const Var& x, const Var& residual,
                          const ResidualNorm& out, Backward backward) {
  tape.record(name, [nx = x.node(), nr = residual.node(), n_sum = out.sum.node(),
                     n_normed = out.normed.node(), backward = std::move(backward)] {
    n_normed->again = {};
    // take() leaves one holder, so that the result may overwrite the tensor.
    Tensor extra = n_sum && n_sum->filled() ? n_sum->take() : Tensor();
    Tensor d_sum;
    if (!n_normed->filled()) {
      d_sum = std::move(extra);
    } else {
      const Tensor dy = n_normed->take();
      // The result may be written to one input's place for its gradient only when the other input wants no
      // gradient.
      GradNode* one = nx && !nr ? nx.get() : nr && !nx ? nr.get() : nullptr;
      d_sum = nx || nr ? contribution_over(one, dy, extra) : Tensor();
      backward(d_sum, dy, extra);
    }
    if (!d_sum) return;
    if (nx) nx->add(d_sum);
    if (nr) nr->add(d_sum);
  });
}

}  // namespace nemocube
