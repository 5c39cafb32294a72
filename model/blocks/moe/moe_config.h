#pragma once
#include <cstdint>

namespace nemocube {

class ConfigKeys;

/// The sizes of a mixture of experts.
struct MoeConfig {
  std::int64_t n_routed_experts = 8;
  std::int64_t num_experts_per_tok = 2;
  std::int64_t intermediate_size = 7688;                ///< of a routed expert
  std::int64_t shared_expert_intermediate_size = 7688;  ///< each block has one shared expert
  std::int64_t latent_size = 0;                         ///< 0: experts work on the hidden width
  std::int64_t n_group = 1;
  std::int64_t topk_group = 1;
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1.0;
  bool bias = false;  ///< on shared experts and latent projections, not on routed experts

  void visit(ConfigKeys& keys);
  bool operator==(const MoeConfig&) const = default;
};

}  // namespace nemocube
