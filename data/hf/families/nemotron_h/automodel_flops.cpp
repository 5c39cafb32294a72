#include "data/hf/families/nemotron_h/nemotron_h.h"
#include "model/blocks/attention/attention_block.h"
#include "model/blocks/block_type.h"
#include "model/blocks/mamba/mamba_block.h"
#include "model/blocks/mlp/mlp_block.h"

namespace nemocube {
namespace {

/// Of a token, forward and backward.
double block_flops(BlockKind kind, const BlockConfig& c, double length) {
  const double h = real(c.hidden_size);
  if (kind == mamba_block) {
    const double d = real(c.mamba.inner()), gn = real(c.mamba.state_width());
    return 6 * h * (2 * d + 2 * gn + real(c.mamba.num_heads)) + 21 * d * real(c.mamba.ssm_state_size) +
           6 * d * h;
  }
  if (kind == attention_block)
    return 6 * h *
           (2 * h + 2 * h * real(c.attention.num_key_value_heads) / real(c.attention.num_attention_heads) +
            length);
  if (kind == mlp_block) return 18 * h * real(c.mlp.intermediate_size);
  const double width = real(c.moe.latent_size > 0 ? c.moe.latent_size : c.hidden_size);
  return 12 * real(c.moe.num_experts_per_tok) * width * real(c.moe.intermediate_size) +
         12 * h * real(c.moe.shared_expert_intermediate_size) + 6 * h * real(c.moe.n_routed_experts) +
         12 * h * real(c.moe.latent_size);
}

}  // namespace

double nemotron_h_automodel_flops(const ModelSetup& setup, std::int64_t sequences, std::int64_t length) {
  const ModelConfig& config = setup.config;
  const std::int64_t depths = setup.choices.mtp.depths;
  double per_token = 6 * real(config.hidden_size) * real(config.vocab_size);
  for (std::int64_t i = 0; i < config.num_layers(); ++i)
    per_token += block_flops(config.blocks[static_cast<std::size_t>(i)], config.block(i), real(length));
  double of_depth = 12 * real(config.hidden_size) * real(config.hidden_size) +
                    6 * real(config.hidden_size) * real(config.vocab_size);
  for (const BlockKind kind : config.mtp_blocks)
    if (depths > 0) of_depth += block_flops(kind, config.common(), real(length));
  per_token += real(depths) * of_depth;
  return real(sequences) * real(length) * per_token;
}

}  // namespace nemocube
