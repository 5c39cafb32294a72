#pragma once
#include <cstdint>

#include "core/tensor.h"

/// Matrices of all experts in memory and in PEFT's files, where one matrix holds them:
///     lora_A [experts r, m]     row e r + k is row k of expert e
///     lora_B [n, r experts]     column k experts + e is column k of expert e
/// Operands are in host memory or meta tensors. Results are contiguous and have the bits of their operands.
namespace nemocube {

Tensor split_rows(const Tensor& a, std::int64_t experts);     ///< lora_A -> [experts, r, m]
Tensor split_columns(const Tensor& b, std::int64_t experts);  ///< lora_B -> [experts, n, r]
Tensor join_rows(const Tensor& each);                         ///< [experts, r, m] -> lora_A
Tensor join_columns(const Tensor& each);                      ///< [experts, n, r] -> lora_B
Tensor transpose_each(const Tensor& each);  ///< [experts, rows, cols] -> [experts, cols, rows]

}  // namespace nemocube
