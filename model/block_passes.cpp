#include "model/block_passes.h"

#include <algorithm>
#include <span>

#include "model/blocks/block_type.h"

namespace nemocube {
namespace {

/// Of a module whose name begins so.
bool trains_adapter(const NemotronHConfig& config, const std::string& prefix) {
  const auto& adapters = config.lora.modules;
  for (auto a = adapters.lower_bound(prefix); a != adapters.end() && a->first.starts_with(prefix); ++a)
    for (const char* factor : {".lora_A.weight", ".lora_B.weight"})
      if (!config.frozen.contains(a->first + factor)) return true;
  return false;
}

/// The passes of these blocks, and of the norm behind them. `residual`: what enters has a gradient.
std::vector<BlockPass> passes_of(const NemotronHConfig& config, bool residual, std::string_view layers,
                                 std::span<const BlockKind> blocks, std::int64_t first,
                                 const std::string& last_norm) {
  const auto trains = [&](const std::string& tensor) { return !config.frozen.contains(tensor); };
  std::vector<BlockPass> passes;
  for (const BlockKind kind : blocks) {
    const std::string block = cat(layers, first++);
    const bool input = residual || trains(block + ".norm.weight"), mixer = trains_mixer(config, block, kind);
    passes.push_back({input || mixer, input});
    residual = input || mixer;
  }
  const bool last = residual || trains(last_norm);
  passes.push_back({last, last});
  return passes;
}

}  // namespace

bool trains_mixer(const NemotronHConfig& config, const std::string& block, BlockKind kind) {
  if (config.frozen.empty() || trains_adapter(config, block + ".mixer.")) return true;
  return std::ranges::any_of(kind->tensors(), [&](const BlockTensor& tensor) {
    return !tensor.buffer && tensor.shape(config.of_tensor(block)) &&
           !config.frozen.contains(cat(block, ".mixer.", tensor.name));
  });
}

std::vector<BlockPass> block_passes(const NemotronHConfig& config, const ModelChunk& chunk) {
  const bool residual = !chunk.embeddings || !config.frozen.contains("backbone.embeddings.weight");
  const std::int64_t end = std::min(chunk.end_block, config.num_layers());
  const auto blocks = std::span(config.blocks)
                          .subspan(static_cast<std::size_t>(chunk.first_block),
                                   static_cast<std::size_t>(end - chunk.first_block));
  return passes_of(config, residual, "backbone.layers.", blocks, chunk.first_block, "backbone.norm_f.weight");
}

std::vector<DepthPasses> mtp_passes(const NemotronHConfig& config, const ModelChunk& chunk) {
  const auto trains = [&](const std::string& tensor) { return !config.frozen.contains(tensor); };
  const std::int64_t blocks = std::ssize(config.mtp_blocks);
  bool hidden = block_passes(config, chunk).back().backward;
  std::vector<DepthPasses> depths;
  for (std::int64_t k = 0; k < config.mtp.depths; ++k) {
    const std::int64_t first = config.mtp.repeated ? 0 : k * blocks;
    const auto in_first = [&](const char* module) {
      return trains(cat("mtp.layers.", first, module, ".weight"));
    };
    const bool enters =
                   hidden || trains("backbone.embeddings.weight") || in_first(".enorm") || in_first(".hnorm"),
               joined = enters || in_first(".eh_proj") ||
                        trains_adapter(config, cat("mtp.layers.", first, ".eh_proj"));
    depths.push_back({{joined, enters},
                      passes_of(config, joined, "mtp.layers.", config.mtp_blocks, first,
                                cat("mtp.layers.", first + blocks - 1, ".final_layernorm.weight"))});
    hidden = depths.back().blocks.back().backward;
  }
  return depths;
}

}  // namespace nemocube
