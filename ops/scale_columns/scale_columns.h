#pragma once
#include <cstdint>
#include <span>

#include "core/autograd.h"

namespace nemocube {

/// Neighbouring columns and their factor.
struct ColumnFactor {
  std::int64_t columns = 0;
  double factor = 1;
};
constexpr std::size_t most_column_factors = 8;

/// y = x, column by column times a factor of the column: the first `columns` columns have the first factor,
/// the next ones the second, and so on. Where every factor is 1, y is x and nothing runs.
///
/// shapes     x, y [..., C], with C the sum of the columns; parts may have no columns
/// layout     rows of x may be strided; y is contiguous
/// dtypes     f32, f64 (CPU) or bf16; factors are rounded to the dtype of the arithmetic, f32 (f64 for f64);
///            bf16 is computed in f32 and rounded once
/// devices    CPU, CUDA
/// memory     y overwrites x when no other tensor shares the storage of x: scale_columns(ctx, linear(..), ..)
///            allocates nothing
/// gradient   dx = dy times the same factors. Keeps nothing. dx overwrites dy when nobody else holds it
/// errors     Error when x is not of a floating dtype, the columns of the factors are not those of x, or a
///            factor is not finite; more than most_column_factors factors
/// source     the multipliers of Falcon-H1 (Hugging Face Transformers), after "Tensor programs V" (Yang et
///            al., 2022)
Var scale_columns(Context& ctx, Var x, std::span<const ColumnFactor> factors);

/// All of x times one factor.
Var scale(Context& ctx, Var x, double factor);

}  // namespace nemocube
