#pragma once
#include "core/tensor.h"

namespace nemocube {

/// y = a + b, elementwise. Each sum is formed in the accumulation type of y and rounded once. The shapes are
/// equal and the row strides are free. a has the dtype of y and may be y itself; b has any float dtype. Or
/// all three are i64.
void add_elements(const Tensor& y, const Tensor& a, const Tensor& b);

}  // namespace nemocube
