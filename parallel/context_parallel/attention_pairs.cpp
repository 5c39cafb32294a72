#include "parallel/context_parallel/attention_pairs.h"

namespace nemocube {
namespace {

/// What the whole sequences keep of ring_step().
struct RingStep {
  AttentionStep step;
};

std::vector<AttentionPair> ring_pairs(const SequenceCut& cut, std::int64_t owner, bool causal) {
  const Sequences &queries = cut.local(), &keys = cut.local(owner);
  std::vector<AttentionPair> pairs;
  for (std::int64_t i = 0; i < queries.count(); ++i) {
    AttentionPair pair{{queries.begin(i), queries.end(i)}, {keys.begin(i), keys.end(i)}};
    if (causal && owner < cut.rank()) pair.keys.end = pair.keys.begin + cut.chunks(i, owner)[0].size();
    if (causal && owner > cut.rank()) pair.queries.begin += cut.chunks(i, cut.rank())[0].size();
    pairs.push_back(pair);
  }
  return pairs;
}

}  // namespace

const AttentionStep& ring_step(const SequenceCut& cut, std::int64_t owner, bool causal, Device device) {
  const auto make = [&] {
    return RingStep{{{ring_pairs(cut, owner, causal), device}, causal && owner == cut.rank()}};
  };
  return cut.whole().derived<RingStep>(device, {cut.ranks(), cut.rank(), owner, causal}, make).step;
}

const std::vector<AttentionStep>& steps_over_all_keys(const SequenceCut& cut, bool causal, Device device) {
  const auto make = [&] {
    const Sequences &queries = cut.local(), &keys = cut.whole();
    std::vector<AttentionPair> all, lower_chunks, upper_chunks;
    for (std::int64_t i = 0; i < queries.count(); ++i) {
      all.push_back({{queries.begin(i), queries.end(i)}, {keys.begin(i), keys.end(i)}});
      const auto [lower, upper] = cut.chunks(i, cut.rank());
      const std::int64_t middle = queries.begin(i) + lower.size();
      lower_chunks.push_back({{queries.begin(i), middle}, {keys.begin(i), keys.begin(i) + lower.end}});
      upper_chunks.push_back({{middle, queries.end(i)}, {keys.begin(i), keys.begin(i) + upper.end}});
    }
    if (!causal) return std::vector<AttentionStep>{{{std::move(all), device}, false}};
    return std::vector<AttentionStep>{{{std::move(lower_chunks), device}, true},
                                      {{std::move(upper_chunks), device}, true}};
  };
  return cut.whole().derived<std::vector<AttentionStep>>(device, {cut.ranks(), cut.rank(), causal}, make);
}

}  // namespace nemocube
