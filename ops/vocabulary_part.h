#pragma once
#include <algorithm>
#include <cstdint>

#include "ops/rank_reduction.h"

namespace nemocube {

/// The tokens whose rows of a [vocabulary, hidden] weight, the embeddings or lm_head, a rank holds. Row i of its
/// weight, and column i of its logits, is token begin + i; from token `vocabulary` on, rows and columns are padding,
/// which makes the parts of all ranks equally long. A part may be padding alone. Every token of the vocabulary is in
/// exactly one part.
struct VocabularyPart {
  std::int64_t begin = 0;
  std::int64_t vocabulary = 0;         ///< tokens of the whole vocabulary, without padding
  RankReduction* reduction = nullptr;  ///< null: the vocabulary is not cut, the other members stay 0

  /// Tokens of the whole vocabulary, and of a part of `length` rows without its padding.
  std::int64_t tokens(std::int64_t length) const { return reduction ? vocabulary : length; }
  std::int64_t own_tokens(std::int64_t length) const {
    return std::clamp<std::int64_t>(tokens(length) - begin, 0, length);
  }
};

}  // namespace nemocube
