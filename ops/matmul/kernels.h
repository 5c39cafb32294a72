#pragma once
#include <cstdint>

#include "core/autograd.h"

/// The products behind matmul(). Internal to this folder; sizes are at least 1 and checked.
namespace nemocube::detail {

struct Operand {
  Tensor tensor;
  bool transposed = false;
};
struct Sizes {
  std::int64_t m = 0, n = 0, k = 0;
};

/// oneDNN. False, with nothing done, when this machine has no product for the dtypes.
bool onednn_product(const Grad& c, const Operand& a, const Operand& b, const Sizes& sizes);
void f64_product(const Grad& c, const Operand& a, const Operand& b, const Sizes& sizes);

/// By way of f32 copies, for bf16 where onednn_product has none.
void converted_product(const Grad& c, const Operand& a, const Operand& b, const Sizes& sizes);

/// Products prepared by oneDNN and kept for reuse.
std::int64_t onednn_plans();
constexpr std::int64_t most_onednn_plans = 1024;

}  // namespace nemocube::detail
