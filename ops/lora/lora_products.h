#pragma once
#include "ops/lora/lora_kernels.h"

/// The products of a low-rank branch, whose wide factor or result has dropout. Internal to this folder and
/// its test.
///
/// shapes     2-D all: wide [T, n], narrow [T, r], weight [r, n], or [n, r] where `transpose` turns it over
/// memory     chunks of rows of the wide matrix are copied, at most rows_at_once() of them
namespace nemocube {

/// The most rows of a matrix of `cols` columns that are copied at a time.
std::int64_t lora_rows_at_once(std::int64_t cols);

/// factor * narrow, in `dtype`, of a narrow matrix of the accumulation type.
Tensor scaled_narrow(const Tensor& narrow, DType dtype, double factor);

/// factor * kept(wide) op(weight): [T, r] in the dtype of `wide`.
Tensor narrow_product(const Tensor& wide, const Tensor& weight, bool transpose, double factor,
                      const KeptElements& kept, std::int64_t rows_at_once);
/// wide = kept(narrow op(weight)), or wide += that, which is rounded before.
void wide_product(const Output& wide, const Tensor& narrow, const Tensor& weight, bool transpose,
                  const KeptElements& kept, std::int64_t rows_at_once);
/// weight = narrow^T kept(wide), or weight += that; with `transpose` weight = kept(wide)^T narrow.
void weight_product(const Output& weight, const Tensor& narrow, const Tensor& wide, bool transpose,
                    const KeptElements& kept, std::int64_t rows_at_once);

}  // namespace nemocube
