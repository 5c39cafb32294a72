#pragma once
#include "core/autograd.h"

namespace nemocube {

/// Whether an operation may write its result over `operand`: the operand is contiguous, no other tensor
/// shares its storage and it is no leaf. `node` is the operand's gradient, or null. The caller must have let
/// go of every other holder, such as a Var that was moved in.
inline bool may_overwrite(const Tensor& operand, const GradNode* node) {
  return operand.unique() && operand.contiguous() && !(node && node->leaf());
}

/// The tensor for such a result: the operand if it may be overwritten, otherwise new memory.
inline Tensor result_over(const Tensor& operand, const GradNode* node) {
  return may_overwrite(operand, node) ? operand
                                      : Tensor::empty(operand.shape(), operand.dtype(), operand.device());
}

}  // namespace nemocube
