#pragma once
#include <memory>

#include "core/autograd.h"
#include "ops/reduce.h"

/// How a backward closure hands a contribution to the gradient of an input.
namespace nemocube {

/// Calls `write(Output)` to form one contribution to the gradient of `node`. The output is the gradient
/// itself for a leaf, else a new tensor (or window) that is added to the gradient afterwards. Does nothing
/// when `node` is null: no gradient is wanted.
template <class Write>
void contribute(const std::shared_ptr<GradNode>& node, Write&& write) {
  if (!node) return;
  if (node->leaf()) return write(node->into());
  const Tensor g = node->buffer();
  write(Output{g, Into::set});
  node->add(g);
}

/// The place for one contribution to the gradient of `node`, written by a kernel that can also add. The
/// caller then passes the place to contribute_written(). On CUDA the place may be the gradient itself. A
/// kernel rounds its values before it adds them to a gradient of bf16, so that the bits are those of a new
/// tensor that is added afterwards, as on the CPU.
inline Output contribution_place(GradNode& node) {
  if (node.leaf()) return node.into();
  if (node.filled() && node.device().is_cuda() && node.grad().unique()) return {node.grad(), Into::add};
  return {node.buffer(), Into::set};
}
/// Adds the contribution that the caller has written, unless the kernel has added it.
inline void contribute_written(GradNode& node, const Output& written) {
  if (!node.leaf() && written.how == Into::set) node.add(written.to);
}

/// A tensor of `dtype`, the dtype of the value. The caller writes one whole contribution into the tensor and
/// passes it to GradNode::add. GradNode::buffer cannot serve for a bf16 leaf, because its gradient is f32.
inline Tensor contribution(GradNode& node, DType dtype) {
  const Tensor t = node.buffer();
  return t.dtype() == dtype ? t : Tensor::empty(node.shape(), dtype, node.device());
}

/// Like contribution(), for a kernel that may overwrite an incoming gradient, `dy`, or another
/// operand, `extra` (which may be undefined), with its result. The result takes the first of these
/// that exists: the place that `node` has for it (a window, or the gradient of a leaf); `extra`, if no
/// other tensor shares its storage; `dy`, under the same condition; new memory. `node` is null when
/// the result is the gradient of more than one value.
inline Tensor contribution_over(GradNode* node, const Tensor& dy, const Tensor& extra = {}) {
  if (node && node->has_place())
    if (const Tensor own = node->buffer(); own.dtype() == dy.dtype()) return own;
  if (extra && extra.unique()) return extra;
  return dy.unique() ? dy : Tensor::empty(dy.shape(), dy.dtype(), dy.device());
}

/// Column sums (see sum_segments) that are contributions to gradients.
class ContributedSums {
 public:
  /// The column sums of `partial` are a contribution to the gradient of `node`, whose value is of `dtype`.
  /// Nothing where `node` is null: no gradient is wanted.
  void add(const std::shared_ptr<GradNode>& node, const Tensor& partial, DType dtype) {
    if (!node) return;
    sums_.push_back(
        {node->leaf() ? node->into() : Output{Tensor::empty(node->shape(), dtype, node->device())}, partial});
    nodes_.push_back(node);
  }
  /// Forms all sums.
  void contribute() {
    sum_segments(sums_);
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      if (!nodes_[i]->leaf()) nodes_[i]->add(sums_[i].out.to);
  }

 private:
  SegmentSums sums_;
  std::vector<std::shared_ptr<GradNode>> nodes_;
};

}  // namespace nemocube
