#pragma once
#include "core/tensor.h"

namespace nemocube {

/// How evenly tokens are spread over experts.
struct ExpertLoad {
  std::int64_t least = 0, most = 0;  ///< tokens of one expert
  double mean = 0;
  double imbalance = 1;  ///< most / mean: 1 when even, E / k when all tokens choose the same k experts
  double variation = 0;  ///< coefficient of variation, the standard deviation over the mean: 0 when even
};

/// counts [E] i64, E > 0: tokens of each expert, summed over the microbatches and ranks of interest. Without
/// any token the load counts as even. Error for other shapes and dtypes.
ExpertLoad expert_load(const Tensor& counts);

}  // namespace nemocube
