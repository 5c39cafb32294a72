#pragma once
#include "ops/update_gate.h"

namespace nemocube {

/// A gate that lets an update through, for tests and benchmarks.
inline UpdateGate open_gate(double grad_scale = 1, Device device = Device::cpu) {
  const auto number = [device](double value) { return Tensor::from<double>({value}, {1}).to(device); };
  return {number(grad_scale), number(1), number(1)};
}

}  // namespace nemocube
