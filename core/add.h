#pragma once
#include "core/tensor.h"

namespace nemocube {

/// y = a + b, elementwise, formed in the accumulation type of y and rounded once. Shapes alike, strides free;
/// a has the dtype of y and may be y, b has any float dtype.
void add_elements(const Tensor& y, const Tensor& a, const Tensor& b);

}  // namespace nemocube
