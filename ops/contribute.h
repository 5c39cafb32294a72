#pragma once
#include <memory>

#include "core/autograd.h"
#include "ops/reduce.h"

/// How a backward closure hands a contribution to the gradient of an input.
namespace nemocube {

/// Lets `write(Output)` form one contribution to `node`'s gradient: straight into a leaf's buffer, else into a
/// new tensor (or window) that is then added. Nothing happens when `node` is null: no gradient is wanted.
template <class Write>
void contribute(const std::shared_ptr<GradNode>& node, Write&& write) {
  if (!node) return;
  if (node->leaf()) return write(node->into());
  const Tensor g = node->buffer();
  write(Output{g, Into::set});
  node->add(g);
}

/// A tensor of `dtype`, the dtype of the value, to write a whole contribution to for GradNode::add. Differs
/// from GradNode::buffer for a leaf of bf16, whose buffer sums in f32.
inline Tensor contribution(GradNode& node, DType dtype) {
  const Tensor t = node.buffer();
  return t.dtype() == dtype ? t : Tensor::empty(node.shape(), dtype);
}

/// As contribution(), for a backward whose result may overwrite `dy`, or `extra` if there is one, the gradients
/// that came in: one of them when nobody else holds it and the result has no place of its own (a window, a leaf).
/// `node` may be null: the result belongs to more than one.
inline Tensor contribution_over(GradNode* node, const Tensor& dy, const Tensor& extra = {}) {
  if (node && node->has_place())
    if (const Tensor own = node->buffer(); own.dtype() == dy.dtype()) return own;
  if (extra && extra.unique()) return extra;
  return dy.unique() ? dy : Tensor::empty(dy.shape(), dy.dtype());
}

/// Adds the column sums of `partial` (see sum_segments) to the gradient of a value of `dtype`.
inline void contribute_sum(GradNode& node, const Tensor& partial, DType dtype) {
  if (node.leaf()) return sum_segments(node.into(), partial);
  const Tensor sum = Tensor::empty(node.shape(), dtype);
  sum_segments({sum, Into::set}, partial);
  node.add(sum);
}

}  // namespace nemocube
