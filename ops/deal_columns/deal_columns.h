#pragma once
#include <vector>

#include "core/autograd.h"
#include "core/shard.h"

/// Columns of matrices dealt out to several owners, as an exchange of rows between ranks needs them, and
/// back. Local work: nothing is sent here.
namespace nemocube {

/// Some columns of one of several matrices.
struct ColumnRange {
  std::size_t matrix = 0;
  Range columns;
};
/// The columns of each rank, equally many for every rank. A column may be dealt to several ranks or to none.
using ColumnDeal = std::vector<std::vector<ColumnRange>>;

/// Row r T + t of y holds the columns of rank r in row t, one range after another.
///
/// shapes     x_m [T, d_m] -> y [ranks T, width of a rank]
/// dtypes     f32, f64 or bf16, all alike; y as x (exact copies)
/// layout     row strides free; y contiguous
/// backward   dx_m: each column is the sum over the ranks that it was dealt to, in their order, in f32 (f64
///            for f64), rounded once; 0 where it was dealt to none
Var deal_columns(Context& ctx, const std::vector<Var>& x, const ColumnDeal& deal);

/// The reverse: x [ranks T, width of a rank], dealt from one matrix of `columns` columns -> y [T, columns].
/// Its backward pass deals dy.
Var collect_columns(Context& ctx, const Var& x, std::int64_t columns, const ColumnDeal& deal);

}  // namespace nemocube
