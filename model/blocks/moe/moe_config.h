#pragma once
#include <cstdint>
#include <optional>

#include "ops/gated_activation/gated_activation.h"
#include "ops/router/router.h"

namespace nemocube {

class ConfigKeys;

/// The sizes of a mixture of experts.
struct MoeConfig {
  std::int64_t n_routed_experts = 8;
  std::int64_t num_experts_per_tok = 2;
  std::int64_t intermediate_size = 7688;                ///< of a routed expert
  std::int64_t shared_expert_intermediate_size = 7688;  ///< 0: no shared expert
  std::int64_t latent_size = 0;                         ///< 0: experts work on the hidden width
  std::int64_t n_group = 1;
  std::int64_t topk_group = 1;
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1.0;
  bool bias = false;  ///< on shared experts and latent projections, not on routed experts
  RouterScores scores = RouterScores::sigmoid;
  bool correction_bias = true;  ///< a bias of the scores for the selection of experts
  bool router_in_f32 = true;    ///< the router's weight is f32 in models of every dtype
  /// Of gated experts, the shared one included, phi(gate x) * (up x); none: squared-ReLU experts. The stack
  /// experts.gate_up_proj has the rows of each expert's gate, then those of its up projection.
  std::optional<GateActivation> gate = {};
  /// The shared expert's rows are multiplied by sigmoid(w x), with the weight w of shared_expert_gate
  /// [1, hidden].
  bool shared_expert_gate = false;
  /// The mixer gets rows without a norm and has norms of its own (MoeMixer): of what the shared expert, the
  /// router and the routed experts read, and of what the shared expert and the routed ones return. Besides,
  /// each expert's weight in the sum is multiplied by a number of that expert.
  bool own_norms = false;

  bool has_shared_expert() const { return shared_expert_intermediate_size > 0; }
  /// The stack of the experts' first weights, below the mixer.
  const char* experts_in() const { return gate ? "experts.gate_up_proj" : "experts.up_proj"; }

  /// What is not a size has keys that families spell in their own ways, and some families the sizes, too.
  void visit(ConfigKeys& keys);
  bool operator==(const MoeConfig&) const = default;
};

}  // namespace nemocube
