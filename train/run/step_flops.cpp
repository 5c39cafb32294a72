#include "train/run/step_flops.h"

#include "model/flops.h"

namespace nemocube {

double step_flops(const NemotronHConfig& config, std::span<const TokenBatch> microbatches) {
  double flops = 0;
  for (const TokenBatch& batch : microbatches) {
    const std::int64_t spare = batch.sequences.has_spare_rows() ? 1 : 0;
    for (std::int64_t i = 0; i < batch.sequences.count() - spare; ++i) {
      const auto length = static_cast<double>(batch.sequences.length(i));
      flops += length * training_flops_per_token(config, length).blocks;
    }
    flops += static_cast<double>(batch.label_tokens) * training_flops_per_token(config, 1).head;
  }
  return flops;
}

}  // namespace nemocube
