#pragma once
#include <vector>

#include "model/nemotron_h.h"
#include "ops/update_gate.h"

namespace nemocube {

/// What a step adds up and decides, on the device of the model. MoE layers and parameters are numbered as in the
/// whole model. The host reads all of it once, when the step ends.
struct StepTensors {
  /// [1 + 4 L + 4] f64 over the microbatches: the loss, the router losses of each of L MoE layers; and the number
  /// of these layers that have a coefficient for each kind of router loss
  Tensor sums;
  Tensor counts;    ///< [L, E] i64: tokens sent to each expert
  Tensor decision;  ///< [3] f64: see clip_decision
  Tensor finite;    ///< [parameters of this rank] f64: see UpdateGate

  explicit StepTensors(const NemotronH& model);
  Tensor loss() const { return sums.narrow(0, 0, 1); }
  Tensor losses_of(std::int64_t moe_layer) const;
  UpdateGate gate() const { return {decision.narrow(0, 1, 1), decision.narrow(0, 2, 1), finite}; }
};

/// The number of each MoE layer of this part among those of the whole model: of a chunk, and of all chunks.
std::vector<std::int64_t> moe_layer_numbers(const NemotronH& model, std::size_t chunk);
std::vector<std::int64_t> moe_layer_numbers(const NemotronH& model);
/// StepTensors::finite for all parameters of the whole model, in the order of tensor_specs(): 1 for those of others.
Tensor finite_of_whole(const NemotronH& model, const Tensor& finite);

}  // namespace nemocube
