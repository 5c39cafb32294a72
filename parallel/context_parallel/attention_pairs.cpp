#include "parallel/context_parallel/attention_pairs.h"

namespace nemocube {

AttentionStep ring_step(const SequenceCut& cut, std::int64_t owner, bool causal) {
  const Sequences queries = cut.local(), keys = cut.local(owner);
  AttentionStep step{{}, causal && owner == cut.rank()};
  for (std::int64_t i = 0; i < queries.count(); ++i) {
    AttentionPair pair{{queries.begin(i), queries.end(i)}, {keys.begin(i), keys.end(i)}};
    if (causal && owner < cut.rank()) pair.keys.end = pair.keys.begin + cut.chunks(i, owner)[0].size();
    if (causal && owner > cut.rank()) pair.queries.begin += cut.chunks(i, cut.rank())[0].size();
    step.pairs.push_back(pair);
  }
  return step;
}

std::vector<AttentionStep> steps_over_all_keys(const SequenceCut& cut, bool causal) {
  const Sequences &queries = cut.local(), &keys = cut.whole();
  std::vector<AttentionStep> steps(causal ? 2 : 1, {{}, causal});
  for (std::int64_t i = 0; i < queries.count(); ++i) {
    if (!causal) {
      steps[0].pairs.push_back({{queries.begin(i), queries.end(i)}, {keys.begin(i), keys.end(i)}});
      continue;
    }
    const auto [lower, upper] = cut.chunks(i, cut.rank());
    const std::int64_t middle = queries.begin(i) + lower.size();
    steps[0].pairs.push_back({{queries.begin(i), middle}, {keys.begin(i), keys.begin(i) + lower.end}});
    steps[1].pairs.push_back({{middle, queries.end(i)}, {keys.begin(i), keys.begin(i) + upper.end}});
  }
  return steps;
}

}  // namespace nemocube
