#pragma once
#include <cstdint>

#include "model/blocks/attention/attention_config.h"
#include "model/blocks/gated_delta_net/gated_delta_net_config.h"
#include "model/blocks/mamba/mamba_config.h"
#include "model/blocks/mlp/mlp_config.h"
#include "model/blocks/moe/moe_config.h"
#include "model/blocks/norm_kind.h"
#include "model/blocks/per_layer_input/per_layer_input_config.h"

namespace nemocube {

/// How a block joins the residual stream x.
enum class Residual : std::uint8_t {
  norm_before,            ///< x + mixer(norm(x))
  norm_before_and_after,  ///< x + norm'(mixer(norm(x)))
  norm_after,             ///< x + norm'(mixer(x)): the mixer has its own norms of x, or none
  shared_norm,            ///< x + mixer(n), with the n that the mixer of the block before got: both work on n
};

/// Whether the block has a norm of its own before its mixer.
constexpr bool has_norm_before(Residual form) {
  return form == Residual::norm_before || form == Residual::norm_before_and_after;
}
/// Whether the block has a norm behind its mixer.
constexpr bool has_norm_after(Residual form) {
  return form == Residual::norm_before_and_after || form == Residual::norm_after;
}

/// The sizes of a block: the width of the residual stream, and sizes for each kind of mixer,
/// of which a block has one. ModelConfig derives from BlockConfig: its base holds the sizes of
/// all blocks without a config of their own.
struct BlockConfig {
  std::int64_t hidden_size = 4096;   ///< of the residual stream: the same in all blocks of a model
  double layer_norm_epsilon = 1e-5;  ///< the same in all blocks of a model

  NormKind norm = NormKind::rmsnorm;  ///< of the residual stream: the same in all blocks, and behind the last
  Residual residual = Residual::norm_before;
  AttentionConfig attention;
  MlpConfig mlp;
  MambaConfig mamba;
  MoeConfig moe;
  GatedDeltaNetConfig gated_delta_net;
  PerLayerInputConfig per_layer_input;

  /// The sizes of kinds that blocks of one model may have of their own. Families hand over those of others.
  void visit(ConfigKeys& keys) {
    attention.visit(keys);
    mlp.visit(keys);
    mamba.visit(keys);
    moe.visit(keys);
  }
  bool operator==(const BlockConfig&) const = default;
};

}  // namespace nemocube
