#pragma once
#include <array>

#include "core/kernel.h"
#include "ops/scale_columns/scale_columns.h"

/// Kernels behind ops/scale_columns/scale_columns.h: arguments checked by the caller.
namespace nemocube {

/// Part i has the columns [ends[i - 1], ends[i]), from 0 on. Parts from `count` on have none.
struct ColumnFactors {
  int count = 0;
  std::array<std::int64_t, most_column_factors> ends{};
  std::array<double, most_column_factors> factors{};
};

namespace cpu {
/// y may be x.
void scale_columns(const Tensor& y, const Tensor& x, const ColumnFactors& factors);
}  // namespace cpu

inline const Kernel<cpu::scale_columns> scale_columns_kernel("scale_columns/scale");

}  // namespace nemocube
