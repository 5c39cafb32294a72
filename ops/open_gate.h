#pragma once
#include "ops/update_gate.h"

namespace nemocube {

/// A gate in host memory that lets an update through, for tests and benchmarks.
inline UpdateGate open_gate(double grad_scale = 1) {
  return {Tensor::from<double>({grad_scale}, {1}), Tensor::from<double>({1}, {1}),
          Tensor::from<double>({1}, {1})};
}

}  // namespace nemocube
