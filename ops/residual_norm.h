#pragma once
#include "core/autograd.h"

namespace nemocube {

/// The results of the step between two blocks: sum = x + residual, and the norm of the sum.
struct ResidualNorm {
  Var sum;
  Var normed;
};

}  // namespace nemocube
