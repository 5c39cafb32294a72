#pragma once
#include <vector>

#include "core/kernel.h"
#include "ops/deal_columns/deal_columns.h"

/// Kernels behind ops/deal_columns/deal_columns.h: arguments checked by the caller.
namespace nemocube {

namespace cpu {
/// y [ranks T, width of a rank] from the matrices [T, d_m].
void deal_columns(const Tensor& y, const std::vector<Tensor>& x, const ColumnDeal& deal);
/// Each column of the matrices x is set to the sum of what is dealt from it in y, in the order of the ranks.
/// Matrices may be undefined.
void collect_columns(const std::vector<Tensor>& x, const Tensor& y, const ColumnDeal& deal);
}  // namespace cpu

inline const Kernel<cpu::deal_columns> deal_columns_kernel("deal_columns/deal");
inline const Kernel<cpu::collect_columns> collect_columns_kernel("deal_columns/collect");

}  // namespace nemocube
