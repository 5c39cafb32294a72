#pragma once
#include <cstdint>

#include "core/tensor.h"
#include "data/peft/peft_config.h"

/// Stacks of experts in memory and in files. A file has all experts in two matrices:
///     A [experts r, m]     row e r + k is row k of expert e
///     B [n, r experts]     column k experts + e is column k of expert e
/// Tensors are in host memory; results are contiguous and have the bits of their operands.
namespace nemocube {

/// A and B of all experts: [experts, r, in] and [experts, out, r].
struct StackFactors {
  Tensor a, b;
};
StackFactors from_stack_layout(const Tensor& a, const Tensor& b, std::int64_t experts, StackLayout layout);
StackFactors to_stack_layout(const Tensor& a, const Tensor& b, StackLayout layout);

}  // namespace nemocube
