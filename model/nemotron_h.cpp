#include "model/nemotron_h.h"

#include <algorithm>

#include "model/mixers/attention.h"
#include "model/mixers/mamba.h"
#include "model/mixers/mlp.h"
#include "ops/embedding/embedding.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/matmul/matmul.h"
#include "ops/rmsnorm/rmsnorm.h"

namespace nemocube {
namespace {

std::unique_ptr<Mixer> make_mixer(BlockKind kind, const NemotronHConfig& config, ParameterStore& store,
                                  const std::string& name) {
  switch (kind) {
    case BlockKind::mamba:
      return std::make_unique<MambaMixer>(config, store, name);
    case BlockKind::attention:
      return std::make_unique<AttentionMixer>(config, store, name);
    case BlockKind::mlp:
      return std::make_unique<MlpMixer>(store, name);
    case BlockKind::moe:
      return std::make_unique<MoeMixer>(config, store, name);
  }
  throw std::logic_error("block kind");
}

}  // namespace

NemotronH::NemotronH(const NemotronHConfig& config, DType dtype, Device device)
    : config_((config.validate(), config)), dtype_(dtype), parameters_(config, dtype, device) {
  loss_chunk_rows = std::clamp<std::int64_t>((4 << 20) / config_.vocab_size, 256, 512);
  embeddings_ = &parameters_.get("backbone.embeddings.weight");
  final_norm_ = &parameters_.get("backbone.norm_f.weight");
  lm_head_ = &parameters_.get("lm_head.weight");
  for (std::size_t i = 0; i < config_.blocks.size(); ++i) {
    const std::string name = "backbone.layers." + std::to_string(i);
    blocks_.push_back({&parameters_.get(name + ".norm.weight"),
                       make_mixer(config_.blocks[i], config_, parameters_, name + ".mixer")});
    if (auto* moe = dynamic_cast<MoeMixer*>(blocks_.back().mixer.get())) moe_layers_.push_back(moe);
  }
}

Var NemotronH::hidden(Context& ctx, const Tensor& ids, const Sequences& sequences, DecodeState* state) {
  sequences.check("model", ids.numel());
  const double eps = config_.layer_norm_epsilon;
  Var residual = embedding(ctx, ids, embeddings_->var());
  Var normed = rmsnorm(ctx, residual, blocks_.empty() ? final_norm_->var() : blocks_[0].norm->var(), eps);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    Mixer& mixer = *blocks_[i].mixer;
    MixerState* kept = state ? state->blocks[i].get() : nullptr;
    const Block step = [&mixer, sequences, kept](Context& c, const Var& x) {
      return mixer.forward(c, x, sequences, kept);
    };
    const Var out = activation_checkpointing ? checkpoint(ctx, "block", step, normed) : step(ctx, normed);
    // One operation adds this block to the residual stream and applies the norm of the next block.
    const Parameter* next = i + 1 < blocks_.size() ? blocks_[i + 1].norm : final_norm_;
    const ResidualNorm sum = residual_rmsnorm(ctx, out, residual, next->var(), eps);
    residual = sum.sum;
    normed = sum.normed;
  }
  return normed;
}

Tensor NemotronH::logits(const Tensor& hidden) const {
  const Tensor out = Tensor::empty({hidden.rows(), config_.vocab_size}, accumulate_dtype(dtype_));
  matmul({out, Into::set}, hidden, false, lm_head_->value, true);
  return out;
}

Var NemotronH::loss(Context& ctx, const Var& hidden, const Tensor& labels, double grad_scale) {
  return linear_cross_entropy(ctx, hidden, lm_head_->var(), labels, grad_scale, loss_chunk_rows);
}

DecodeState NemotronH::make_state(std::int64_t sequences) const {
  DecodeState state;
  for (const Layer& block : blocks_) state.blocks.push_back(block.mixer->make_state(sequences));
  return state;
}

}  // namespace nemocube
