#include "train/memory/training_memory.h"

#include <algorithm>

#include "core/memory_limit.h"

namespace nemocube {
namespace {

/// Numbers that a block keeps for each token: in the dtype of the model, and in f32 (f64).
struct Kept {
  double stored = 0, wide = 0;
  double no_gradient = 0;   ///< the part of `stored` whose gradients never coexist with the other gradients
  double accumulators = 0;  ///< that backward alone needs, in f32 (f64)
};

Kept kept_by(BlockKind kind, const NemotronHConfig& c) {
  const auto n = [](std::int64_t count) { return static_cast<double>(count); };
  Kept kept;
  switch (kind) {
    case BlockKind::mamba:
      // in_proj's output, the convolution's, the scan's and the norm's; the states at the starts of chunks
      kept.stored = n(c.in_proj_width()) + n(c.conv_dim()) + 2 * n(c.mamba_inner());
      kept.wide = n(c.n_groups) + n(c.mamba_inner()) * n(c.ssm_state_size) / n(c.chunk_size);
      break;
    case BlockKind::attention:
      kept.stored = 2 * n(c.q_width()) + 2 * n(c.kv_width());  // q, the output, k and v
      kept.wide = n(c.num_attention_heads);
      kept.accumulators = 2 * n(c.kv_width());  // of the gradients of k and v
      break;
    case BlockKind::mlp:
      kept.stored = n(c.intermediate_size);
      break;
    case BlockKind::moe:
      // for each expert of a token: input row, hidden row and output row
      kept.stored = n(c.num_experts_per_tok) * (2 * n(c.expert_width()) + n(c.moe_intermediate_size));
      kept.stored += n(c.moe_shared_expert_intermediate_size);
      if (c.moe_latent_size > 0) kept.stored += n(c.moe_latent_size);
      // Backward handles shared and routed experts one after the other. It has freed the gradient of the
      // output rows when it computes the gradient of the input rows.
      kept.no_gradient =
          n(c.num_experts_per_tok) * n(c.expert_width()) + n(c.moe_shared_expert_intermediate_size);
      kept.wide = n(c.n_routed_experts) + n(c.num_experts_per_tok);
      break;
  }
  return kept;
}

}  // namespace

std::vector<MemoryItem> state_memory(const ParameterStore& parameters, const OptimizerOptions& options) {
  std::int64_t weights = 0, gradients = 0, masters = 0, moments = 0;
  const int moments_of_each = options.kind != OptimizerKind::sgd ? 2 : options.momentum != 0 ? 1 : 0;
  for (const Parameter& p : parameters.all()) {
    weights += p.value.bytes();
    if (!p.wants_grad()) continue;
    const std::int64_t wide = p.value.numel() * size_of(accumulate_dtype(p.value.dtype()));
    gradients += wide;
    if (p.value.dtype() == DType::bf16) masters += wide;
    moments += moments_of_each * wide;
  }
  return {{"weights", weights}, {"gradients", gradients}, {"masters", masters}, {"moments", moments}};
}

std::int64_t activation_memory(const NemotronHConfig& config, DType dtype, const ActivationOptions& options) {
  const auto stored_size = static_cast<double>(size_of(dtype));
  const auto wide_size = static_cast<double>(size_of(accumulate_dtype(dtype)));
  const auto hidden = static_cast<double>(config.hidden_size);
  double blocks = 0, recomputed = 0, gradients = 0;
  for (const BlockKind kind : config.blocks) {
    const Kept kept = kept_by(kind, config);
    const double bytes = kept.stored * stored_size + kept.wide * wide_size;
    recomputed = std::max(recomputed, bytes);
    gradients = std::max(gradients, bytes - kept.no_gradient * stored_size + kept.accumulators * wide_size);
    // The residual sum, its norm, and one factor of that.
    blocks += 2 * hidden * stored_size + wide_size + (options.checkpointing ? 0 : bytes);
  }
  if (options.checkpointing) blocks += recomputed;
  const auto rows = static_cast<double>(std::min(options.tokens, options.loss_rows));
  const double logits = rows * static_cast<double>(config.vocab_size) * wide_size;
  // Embeddings, the hidden states for the head and the gradients of both.
  const double ends = 4 * hidden * stored_size;
  return static_cast<std::int64_t>(static_cast<double>(options.tokens) * (blocks + gradients + ends) +
                                   logits);
}

std::int64_t total_bytes(const std::vector<MemoryItem>& items) {
  std::int64_t total = 0;
  for (const MemoryItem& item : items) total += item.bytes;
  return total;
}

std::string describe(const std::vector<MemoryItem>& items) {
  std::string text;
  for (const MemoryItem& item : items)
    if (item.bytes > 0) text += cat(text.empty() ? "" : ", ", item.what, " ", bytes_text(item.bytes));
  return text;
}

}  // namespace nemocube
