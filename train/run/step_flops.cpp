#include "train/run/step_flops.h"

#include "model/flops.h"

namespace nemocube {

double step_flops(const NemotronHConfig& config, std::span<const TokenBatch> microbatches) {
  double forward = 0;
  for (const TokenBatch& batch : microbatches) {
    const std::int64_t spare = batch.sequences.has_spare_rows() ? 1 : 0;
    for (std::int64_t i = 0; i < batch.sequences.count() - spare; ++i) {
      const auto length = static_cast<double>(batch.sequences.length(i));
      const ForwardFlops f = forward_flops_per_token(config, length);
      forward += length * (f.total() - f.head);
    }
    forward += static_cast<double>(batch.label_tokens) * forward_flops_per_token(config, 1).head;
  }
  return 3 * forward;
}

}  // namespace nemocube
