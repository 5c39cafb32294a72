#pragma once
#include "core/cuda/rows.cuh"
#include "ops/cross_entropy/grad_scale.h"

namespace nemocube::cuda {

/// A GradScale, for kernels.
struct DeviceScale {
  double number;
  const double *factor, *rows;  // null: 1
  __device__ double value(std::int64_t row) const {
    const double common = factor ? number * *factor : number;
    return rows ? common * rows[row] : common;
  }
};
inline DeviceScale on_device(const GradScale& scale) {
  const auto numbers = [](const Tensor& t) { return t ? data_of<double>(t) : nullptr; };
  return {scale.number, numbers(scale.tensor), numbers(scale.rows)};
}

}  // namespace nemocube::cuda
