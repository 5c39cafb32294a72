#pragma once
#include "core/tensor.h"

namespace nemocube::testing {

/// The rows of x [rows, cols], on a device and so far apart that the last one lies behind 2^31 elements. What
/// lies between them is never touched.
inline Tensor far_rows(const Tensor& x, Device device) {
  const std::int64_t apart = ((std::int64_t{1} << 31) / (x.rows() - 1) + 8) / 8 * 8;
  const Tensor rows = Tensor::empty({x.rows(), apart}, x.dtype(), device).narrow(-1, 0, x.cols());
  for (std::int64_t r = 0; r < x.rows(); ++r) rows.narrow(0, r, 1).copy_from(x.narrow(0, r, 1));
  return rows;
}

/// A copy of such rows on the CPU.
inline Tensor gathered_rows(const Tensor& rows) {
  const Tensor copy = Tensor::empty(rows.shape(), rows.dtype(), Device::cpu);
  for (std::int64_t r = 0; r < rows.rows(); ++r) copy.narrow(0, r, 1).copy_from(rows.narrow(0, r, 1));
  return copy;
}

}  // namespace nemocube::testing
