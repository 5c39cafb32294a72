#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "data/megatron/indexed_tokens.h"

namespace nemocube {

/// Where the samples of Megatron's GPTDataset lie in a file of tokens, number for number as Megatron-LM and
/// NeMo AutoModel compute it (megatron/core/datasets/gpt_dataset.py).
///
/// The sequences [first, last), E times over and shuffled, make one row of tokens, which is cut into
/// samples of S + 1 tokens; neighbours share a token. E is the smallest number that gives n samples. The
/// samples are shuffled, too. Where less than 80 % of the samples of the last pass are needed, sequences
/// and samples of that pass are shuffled apart and come last. Random numbers come from
/// numpy.random.RandomState(seed).
struct GptIndex {
  struct SampleStart {
    std::int64_t document = 0;  ///< place in `documents`
    std::int64_t offset = 0;    ///< in the sequence there
  };
  std::vector<std::int32_t> documents;  ///< sequences, in order
  std::vector<SampleStart> samples;   ///< where each sample begins, then where the last one ends; unshuffled
  std::vector<std::int64_t> shuffle;  ///< sample i begins at samples[shuffle[i]]
};

struct GptRange {
  std::int64_t first = 0, last = 0;          ///< sequences
  std::int64_t seq_length = 0;               ///< S
  std::optional<std::int64_t> samples = {};  ///< n; absent: the samples of E = 1
  std::uint32_t seed = 1234;
};

/// Throws Error naming the file when the sequences have too few tokens for a sample, when n S is above 2^62,
/// when there are more than 2^32 samples or sequences to shuffle, and as require_index_memory() does.
GptIndex gpt_index(const IndexedTokens& tokens, const GptRange& range);

}  // namespace nemocube
