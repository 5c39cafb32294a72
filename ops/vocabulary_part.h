#pragma once
#include <cstdint>

#include "ops/rank_reduction.h"

namespace nemocube {

/// The tokens of a rank: it holds their rows of a [vocabulary, hidden] weight, the embeddings or lm_head. Row
/// i of its weight, and column i of its logits, is token begin + i. Every token of the vocabulary is in
/// exactly one part; a part may be empty.
struct VocabularyPart {
  std::int64_t begin = 0;
  RankReduction* reduction = nullptr;  ///< null: the vocabulary is not cut
};

}  // namespace nemocube
