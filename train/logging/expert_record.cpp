#include "train/logging/expert_record.h"

#include <algorithm>

#include "parallel/expert_parallel/expert_load.h"

namespace nemocube {

double ExpertRecord::worst() const { return imbalance.empty() ? 0 : std::ranges::max(imbalance); }

ExpertRecord expert_record(std::span<const Tensor> counts) {
  ExpertRecord record;
  for (const Tensor& layer : counts) {
    record.imbalance.push_back(expert_load(layer).imbalance);
    const auto* tokens = layer.data<std::int64_t>();
    record.tokens.emplace_back(tokens, tokens + layer.numel());
  }
  return record;
}

}  // namespace nemocube
