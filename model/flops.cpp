#include "model/flops.h"

namespace nemocube {

ForwardFlops forward_flops_per_token(const NemotronHConfig& c, double sequence_length) {
  const auto real = [](std::int64_t n) { return static_cast<double>(n); };
  const double h = real(c.hidden_size);
  const double d = real(c.mamba_inner()), gn = real(c.state_width()), q = real(c.chunk_size);
  const double heads = real(c.num_attention_heads), kv_heads = real(c.num_key_value_heads),
               hd = real(c.head_dim);
  const double latent = real(c.moe_latent_size), expert_in = c.moe_latent_size > 0 ? latent : h;
  ForwardFlops f;
  for (const BlockKind kind : c.blocks) {
    switch (kind) {
      case BlockKind::mamba: {
        const double projections = 2 * h * (2 * d + 2 * gn + real(c.mamba_num_heads)) + 2 * d * h;
        const double conv = 2 * (d + 2 * gn) * real(c.conv_kernel);
        const double scan = 2 * q * gn + 2 * q * d + 4 * d * real(c.ssm_state_size);
        f.mamba += projections + conv + scan;
        break;
      }
      case BlockKind::attention:
        f.attention += 2 * h * hd * (2 * heads + 2 * kv_heads) + 4 * heads * hd * (sequence_length + 1) / 2;
        break;
      case BlockKind::mlp:
        f.mlp += 4 * h * real(c.intermediate_size);
        break;
      case BlockKind::moe:
        f.moe += 4 * real(c.num_experts_per_tok) * expert_in * real(c.moe_intermediate_size) +
                 4 * h * real(c.moe_shared_expert_intermediate_size) + 2 * h * real(c.n_routed_experts) +
                 4 * h * latent;
        break;
    }
  }
  f.head = 2 * h * real(c.vocab_size);
  return f;
}

double automodel_step_flops(const NemotronHConfig& c, std::int64_t sequences, std::int64_t sequence_length) {
  const auto real = [](std::int64_t n) { return static_cast<double>(n); };
  const double s = real(sequence_length), h = real(c.hidden_size), n = real(c.ssm_state_size);
  const double d = real(c.mamba_inner()), gn = real(c.state_width());
  const double latent = real(c.moe_latent_size), expert_in = c.moe_latent_size > 0 ? latent : h;
  double per_token = 6 * h * real(c.vocab_size);
  for (const BlockKind kind : c.blocks) {
    switch (kind) {
      case BlockKind::mamba:
        per_token += 6 * h * (2 * d + 2 * gn + real(c.mamba_num_heads)) + 21 * d * n + 6 * d * h;
        break;
      case BlockKind::attention:
        per_token += 6 * h * (2 * h + 2 * h * real(c.num_key_value_heads) / real(c.num_attention_heads) + s);
        break;
      case BlockKind::mlp:
        per_token += 18 * h * real(c.intermediate_size);
        break;
      case BlockKind::moe:
        per_token += 12 * real(c.num_experts_per_tok) * expert_in * real(c.moe_intermediate_size) +
                     12 * h * real(c.moe_shared_expert_intermediate_size) + 6 * h * real(c.n_routed_experts) +
                     12 * h * latent;
        break;
    }
  }
  return real(sequences) * s * per_token;
}

}  // namespace nemocube
