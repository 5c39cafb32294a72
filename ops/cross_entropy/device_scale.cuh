#pragma once
#include "core/cuda/rows.cuh"
#include "ops/cross_entropy/grad_scale.h"

namespace nemocube::cuda {

/// A GradScale, for kernels.
struct DeviceScale {
  double number;
  const double* factor;  // null: 1
  __device__ double value() const { return factor ? number * *factor : number; }
};
inline DeviceScale on_device(const GradScale& scale) {
  return {scale.number, scale.tensor ? data_of<double>(scale.tensor) : nullptr};
}

}  // namespace nemocube::cuda
