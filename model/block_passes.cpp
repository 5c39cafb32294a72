#include "model/block_passes.h"

#include <algorithm>

#include "model/blocks/block_type.h"

namespace nemocube {
namespace {

bool trains_adapter(const NemotronHConfig& config, const std::string& mixer) {
  const auto& adapters = config.lora.modules;
  for (auto a = adapters.lower_bound(mixer); a != adapters.end() && a->first.starts_with(mixer); ++a)
    for (const char* factor : {".lora_A.weight", ".lora_B.weight"})
      if (!config.frozen.contains(a->first + factor)) return true;
  return false;
}

bool trains_mixer(const NemotronHConfig& config, const std::string& block, BlockKind kind) {
  if (config.frozen.empty() || trains_adapter(config, block + ".mixer.")) return true;
  return std::ranges::any_of(kind->tensors(), [&](const BlockTensor& tensor) {
    return !tensor.buffer && tensor.shape(config) &&
           !config.frozen.contains(cat(block, ".mixer.", tensor.name));
  });
}

}  // namespace

std::vector<BlockPass> block_passes(const NemotronHConfig& config, const ModelChunk& chunk) {
  const auto trains = [&](std::string_view tensor) { return !config.frozen.contains(tensor); };
  bool residual = !chunk.embeddings || trains("backbone.embeddings.weight");
  std::vector<BlockPass> passes;
  for (std::int64_t i = chunk.first_block; i < std::min(chunk.end_block, config.num_layers()); ++i) {
    const std::string block = cat("backbone.layers.", i);
    const bool input = residual || trains(block + ".norm.weight"),
               mixer = trains_mixer(config, block, config.blocks[static_cast<std::size_t>(i)]);
    passes.push_back({input || mixer, input});
    residual = input || mixer;
  }
  const bool last = residual || trains("backbone.norm_f.weight");
  passes.push_back({last, last});
  return passes;
}

}  // namespace nemocube
