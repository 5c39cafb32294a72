#include "model/block_passes.h"

#include <algorithm>
#include <span>

#include "model/blocks/block_type.h"
#include "model/blocks/per_layer_input/per_layer_input_block.h"

namespace nemocube {
namespace {

bool trains(const ModelSetup& setup, const TensorName& tensor) {
  return !setup.choices.frozen.contains(tensor);
}
bool trains_weight(const ModelSetup& setup, const TensorName& module) {
  return trains(setup, module / "weight");
}
bool trains_norm(const ModelSetup& setup, const TensorName& module) {
  return trains_weight(setup, module) ||
         (setup.config.norm == NormKind::layernorm && trains(setup, module / "bias"));
}

bool trains_adapter(const ModelSetup& setup, const TensorName& module) {
  return setup.choices.lora.modules.contains(module) &&
         (trains(setup, module / lora_a_weight) || trains(setup, module / lora_b_weight));
}

/// Whether the adapter of some module of this mixer is trained.
bool trains_adapter_in(const ModelSetup& setup, const TensorName& mixer) {
  const auto& adapters = setup.choices.lora.modules;
  for (auto a = adapters.lower_bound(mixer); a != adapters.end() && a->first.whole() == mixer; ++a)
    if (trains_adapter(setup, a->first)) return true;
  return false;
}

/// Whether per-layer inputs have a gradient, `embedded`: the embeddings of the tokens have one.
bool trains_per_layer_inputs(const ModelSetup& setup, bool embedded) {
  return embedded || trains_weight(setup, per_layer_embeddings_name()) ||
         trains_weight(setup, per_layer_model_projection_name()) ||
         trains_adapter(setup, per_layer_model_projection_name()) ||
         trains_weight(setup, per_layer_projection_norm_name());
}

/// The passes of these blocks, and of the norm behind them. `residual`: what enters has a gradient; `side`:
/// side rows that enter with it have one.
std::vector<BlockPass> passes_of(const ModelSetup& setup, bool residual, bool side, TensorName block,
                                 std::span<const BlockKind> blocks, const TensorName& last_norm) {
  std::vector<BlockPass> passes;
  bool input = false;  // of the mixer: what enters it has a gradient
  for (const BlockKind kind : blocks) {
    const BlockConfig& sizes = setup.config.of_tensor(block);
    if (sizes.residual != Residual::shared_norm)
      input = residual || (has_norm_before(sizes.residual) && trains_norm(setup, block / "norm"));
    // Rows that a block before has made have a gradient only where its output has one, too.
    const auto number = block.block_of_model();
    const bool reads = side && number && !kind->side_rows(sizes, *number).empty();
    const bool backward = input || reads || trains_mixer(setup, block, kind),
               after = has_norm_after(sizes.residual) && trains_norm(setup, block / post_norm);
    passes.push_back({backward, input});
    residual = residual || backward || after;
    ++block.block;
  }
  const bool last = residual || trains_norm(setup, last_norm);
  passes.push_back({last, last});
  return passes;
}

}  // namespace

bool trains_mixer(const ModelSetup& setup, const TensorName& block, BlockKind kind) {
  const TensorName mixer = mixer_of(block);
  if (setup.choices.frozen.empty() || trains_adapter_in(setup, mixer)) return true;
  return std::ranges::any_of(kind->tensors(), [&](const BlockTensor& tensor) {
    return !tensor.buffer && tensor.shape(setup.config.of_tensor(block)) &&
           trains(setup, mixer / tensor.name);
  });
}

std::vector<BlockPass> block_passes(const ModelSetup& setup, const ModelChunk& chunk) {
  const ModelConfig& config = setup.config;
  const bool residual = !chunk.embeddings || trains_weight(setup, embeddings_name());
  const bool side = config.count(per_layer_input_block) > 0 && trains_per_layer_inputs(setup, residual);
  const std::int64_t end = std::min(chunk.end_block, config.num_layers());
  const auto blocks = std::span(config.blocks)
                          .subspan(static_cast<std::size_t>(chunk.first_block),
                                   static_cast<std::size_t>(end - chunk.first_block));
  return passes_of(setup, residual, side, block_name(chunk.first_block), blocks, final_norm_name());
}

std::vector<DepthPasses> mtp_passes(const ModelSetup& setup, const ModelChunk& chunk) {
  const MtpTraining& mtp = setup.choices.mtp;
  const std::vector<BlockKind>& kinds = setup.config.mtp_blocks;
  const std::int64_t blocks = std::ssize(kinds);
  bool hidden = block_passes(setup, chunk).back().backward;
  std::vector<DepthPasses> depths;
  for (std::int64_t k = 0; k < mtp.depths; ++k) {
    const TensorName first = depth_name(mtp.repeated ? 0 : k * blocks),
                     last = depth_name(first.block + blocks - 1), join = first / mtp_join;
    const bool enters = hidden || trains_weight(setup, embeddings_name()) ||
                        trains_norm(setup, first / mtp_embedding_norm) ||
                        trains_norm(setup, first / mtp_hidden_norm),
               joined = enters || trains_weight(setup, join) || trains_adapter(setup, join);
    depths.push_back(
        {{joined, enters}, passes_of(setup, joined, false, first, kinds, last / mtp_final_norm)});
    hidden = depths.back().blocks.back().backward;
  }
  return depths;
}

}  // namespace nemocube
