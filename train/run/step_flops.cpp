#include "train/run/step_flops.h"

#include <map>

#include "model/flops.h"

namespace nemocube {

double step_flops(const ModelSetup& setup, std::span<const TokenBatch> microbatches) {
  double flops = 0;
  std::map<std::int64_t, double> blocks;  // per token, by the length of its sequence
  const auto blocks_at = [&](std::int64_t length) {
    const auto [at, is_new] = blocks.try_emplace(length);
    if (is_new) at->second = training_flops_per_token(setup, static_cast<double>(length)).blocks;
    return at->second;
  };
  const double head = training_flops_per_token(setup, 1).head;
  for (const TokenBatch& batch : microbatches) {
    const std::int64_t spare = batch.sequences.has_spare_rows() ? 1 : 0;
    for (std::int64_t i = 0; i < batch.sequences.count() - spare; ++i) {
      const std::int64_t length = batch.sequences.length(i);
      flops += static_cast<double>(length) * blocks_at(length);
    }
    flops += static_cast<double>(batch.label_tokens) * head;
  }
  return flops;
}

}  // namespace nemocube
