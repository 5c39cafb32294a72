#pragma once
#include <vector>

#include "model/stack.h"
#include "ops/update_gate.h"

namespace nemocube {

/// Sums and decisions of a step, on the device of the model. MoE layers and parameters
/// are numbered as in the whole model. All tensors lie in one tensor, so that the host
/// reads them by one copy when the step ends.
struct StepTensors {
  Tensor all;  ///< [n] f64: the tensors below, one after another
  /// [1 + 4 L + 4 + D] f64 over the microbatches: the loss, the router losses of each of L MoE layers; the
  /// number of these layers that have a coefficient for each kind of router loss; and the loss of each of D
  /// depths of multi-token prediction
  Tensor sums;
  /// [L, E] i64: tokens sent to each expert. E is the number of experts of the layer that has the most;
  /// layers with fewer experts have zeros at the end of their row.
  Tensor counts;
  Tensor decision;  ///< [3] f64: see clip_decision
  Tensor finite;    ///< [parameters of the whole model] f64: see UpdateGate; 1 for parameters of other ranks

  /// With the values that a step begins with.
  explicit StepTensors(const Stack& model);
  void reset(const Stack& model);  ///< to the initial values, in the same memory
  /// The same tensors with their values in host memory. The host waits.
  StepTensors fetch() const;
  Tensor loss() const { return sums.narrow(0, 0, 1); }
  /// Of depth k = 0, 1, ... [1].
  Tensor mtp_loss(std::int64_t k) const { return sums.narrow(0, sums.numel() - depths_ + k, 1); }
  std::int64_t depths() const { return depths_; }
  /// [layers, 4]: the router losses of MoE layers that follow each other.
  Tensor losses_of(std::int64_t first, std::int64_t layers) const;
  UpdateGate gate() const { return {decision.narrow(0, 1, 1), decision.narrow(0, 2, 1), finite}; }

 private:
  StepTensors(const Tensor& all, std::int64_t layers, std::int64_t experts, std::int64_t depths);
  static StepTensors start_of(const Stack& model);  // in host memory
  StepTensors to(Device device) const;
  std::int64_t depths_ = 0;
};

/// The number, in the whole model, of each MoE layer of this part: of a chunk, and of all chunks. MoE layers
/// of multi-token prediction are the last of the model, and belong to the chunk with the head.
std::vector<std::int64_t> moe_layer_numbers(const Stack& model, std::size_t chunk);
std::vector<std::int64_t> moe_layer_numbers(const Stack& model);
/// MoE layers of each depth of multi-token prediction.
std::int64_t moe_layers_of_depth(const ModelConfig& config);

}  // namespace nemocube
