#include "parallel/context_parallel/attention_pairs.h"

#include <algorithm>
#include <utility>

namespace nemocube {
namespace {

/// What the whole sequences keep of ring_steps().
struct RingSteps {
  std::vector<AttentionStep> steps;
};

bool by_position(const AttentionOptions& options) { return options.window > 0 || options.slopes; }

/// What steps depend on besides the sequences.
std::vector<std::int64_t> key_of(const SequenceCut& cut, const AttentionOptions& options) {
  std::vector<std::int64_t> key{cut.ranks(), cut.rank(), options.causal};
  if (by_position(options)) key.insert(key.end(), {options.window, 1});
  return key;
}

/// The local rows of a chunk of sequence i.
Range rows_of(const SequenceCut& cut, std::int64_t i, std::int64_t rank, std::size_t chunk) {
  const auto chunks = cut.chunks(i, rank);
  const std::int64_t begin = cut.local(rank).begin(i) + (chunk == 0 ? 0 : chunks[0].size());
  return {begin, begin + chunks[chunk].size()};
}

std::vector<AttentionPair> ring_pairs(const SequenceCut& cut, std::int64_t owner, bool causal) {
  const Sequences &queries = cut.local(), &keys = cut.local(owner);
  std::vector<AttentionPair> pairs;
  for (std::int64_t i = 0; i < queries.count(); ++i) {
    Range q{queries.begin(i), queries.end(i)}, k{keys.begin(i), keys.end(i)};
    if (causal && owner < cut.rank()) k = rows_of(cut, i, owner, 0);
    if (causal && owner > cut.rank()) q = rows_of(cut, i, cut.rank(), 1);
    pairs.push_back({q, k});
  }
  return pairs;
}

/// Whether some query sees some key, in ranges of one sequence.
bool meet(const Range& queries, const Range& keys, const AttentionOptions& options) {
  if (queries.size() == 0 || keys.size() == 0) return false;
  if (!options.causal) return true;
  return keys.begin < queries.end && (options.window == 0 || keys.end > queries.begin - options.window + 1);
}

std::vector<AttentionStep> ring_steps_by_chunks(const SequenceCut& cut, std::int64_t owner,
                                                const AttentionOptions& options, Device device) {
  std::vector<AttentionStep> steps;
  for (const std::size_t crosswise : {0U, 1U}) {
    std::vector<AttentionPair> pairs;
    for (std::int64_t i = 0; i < cut.whole().count(); ++i) {
      const auto queries = cut.chunks(i, cut.rank()), keys = cut.chunks(i, owner);
      for (const std::size_t q : {0U, 1U}) {
        const std::size_t k = q ^ crosswise;
        if (meet(queries[q], keys[k], options))
          pairs.push_back(
              {rows_of(cut, i, cut.rank(), q), rows_of(cut, i, owner, k), queries[q].begin - keys[k].begin});
      }
    }
    if (!pairs.empty()) steps.push_back({{std::move(pairs), device}, options.causal});
  }
  return steps;
}

std::vector<AttentionPair> all_pairs(const SequenceCut& cut) {
  const Sequences &queries = cut.local(), &keys = cut.whole();
  std::vector<AttentionPair> pairs;
  for (std::int64_t i = 0; i < queries.count(); ++i)
    pairs.push_back({{queries.begin(i), queries.end(i)}, {keys.begin(i), keys.end(i)}});
  return pairs;
}

/// The lower (0) or upper (1) chunks against the keys of whole sequences that they may see.
std::vector<AttentionPair> pairs_of_chunks(const SequenceCut& cut, std::size_t chunk,
                                           const AttentionOptions& options) {
  std::vector<AttentionPair> pairs;
  for (std::int64_t i = 0; i < cut.whole().count(); ++i) {
    const Range queries = cut.chunks(i, cut.rank())[chunk];
    const std::int64_t end = options.causal ? queries.end : cut.whole().length(i),
                       outside = options.window > 0 ? queries.begin - options.window + 1 : 0,
                       first = std::clamp<std::int64_t>(outside, 0, end), row = cut.whole().begin(i);
    pairs.push_back({rows_of(cut, i, cut.rank(), chunk), {row + first, row + end}, queries.begin - first});
  }
  return pairs;
}

}  // namespace

const std::vector<AttentionStep>& ring_steps(const SequenceCut& cut, std::int64_t owner,
                                             const AttentionOptions& options, Device device) {
  const auto make = [&] {
    if (by_position(options)) return RingSteps{ring_steps_by_chunks(cut, owner, options, device)};
    const bool causal = options.causal;
    return RingSteps{{{{ring_pairs(cut, owner, causal), device}, causal && owner == cut.rank()}}};
  };
  std::vector<std::int64_t> key = key_of(cut, options);
  key.push_back(owner);
  return cut.whole().derived<RingSteps>(device, key, make).steps;
}

const std::vector<AttentionStep>& steps_over_all_keys(const SequenceCut& cut, const AttentionOptions& options,
                                                      Device device) {
  const auto make = [&] {
    const bool causal = options.causal;
    if (!causal && !by_position(options))
      return std::vector<AttentionStep>{{{all_pairs(cut), device}, false}};
    return std::vector<AttentionStep>{{{pairs_of_chunks(cut, 0, options), device}, causal},
                                      {{pairs_of_chunks(cut, 1, options), device}, causal}};
  };
  return cut.whole().derived<std::vector<AttentionStep>>(device, key_of(cut, options), make);
}

}  // namespace nemocube
