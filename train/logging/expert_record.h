#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor.h"

namespace nemocube {

/// Tokens of the experts in one step, over all ranks and microbatches: a row for each MoE layer of the model.
struct ExpertRecord {
  std::vector<std::vector<std::int64_t>> tokens;  ///< of each expert
  std::vector<double> imbalance;                  ///< ExpertLoad::imbalance: 1 when even

  double worst() const;  ///< the largest imbalance; 0 without layers
};

/// counts: StepResult::expert_counts, of each MoE layer [E] i64.
ExpertRecord expert_record(std::span<const Tensor> counts);

}  // namespace nemocube
