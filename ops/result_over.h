#pragma once
#include "core/autograd.h"

namespace nemocube {

/// Whether an operation may write its result over `operand`: the operand is contiguous, no other tensor
/// shares its storage and it is no leaf. `node` is that of the operand's gradient, or null. The caller has
/// let go of every other holder, such as the Var that was moved in.
inline bool may_overwrite(const Tensor& operand, const GradNode* node) {
  return operand.unique() && operand.contiguous() && !(node && node->leaf());
}

/// Where such a result is written: over the operand if that may be, else new memory.
inline Tensor result_over(const Tensor& operand, const GradNode* node) {
  return may_overwrite(operand, node) ? operand
                                      : Tensor::empty(operand.shape(), operand.dtype(), operand.device());
}

}  // namespace nemocube
