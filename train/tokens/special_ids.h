#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "model/config.h"

namespace nemocube {

/// Ids with a meaning, from the tokenizer's own files, then from the model's config.
struct SpecialIds {
  std::optional<std::int64_t> bos;
  std::vector<std::int64_t>
      eos;               ///< the first is the one appended to training rows; any of them ends generation
  std::int64_t pad = 0;  ///< the tokenizer's, else the config's, else the first EOS
};
SpecialIds special_ids(const Tokenizer& tokenizer, const NemotronHConfig& config);

/// Throws Error when the tokenizer can make ids that a model of `vocab_size` does not know.
void check_vocabulary(const Tokenizer& tokenizer, std::int64_t vocab_size);

}  // namespace nemocube
