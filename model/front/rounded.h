#pragma once
#include "core/tensor.h"

namespace nemocube {

/// A number as it is stored in this dtype.
inline double rounded(double value, DType dtype) {
  const Tensor on_host = Tensor::scalar(value, DType::f64, Device::cpu);  // a number that the host needs
  return on_host.to(dtype).to_vector().front();
}

}  // namespace nemocube
