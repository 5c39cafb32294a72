#include "train/tokens/special_ids.h"

#include <algorithm>

#include "core/error.h"

namespace nemocube {

SpecialIds special_ids(const Tokenizer& tokenizer, const NemotronHConfig& config) {
  SpecialIds ids;
  ids.bos = tokenizer.bos_id() ? tokenizer.bos_id() : config.bos_token_id;
  if (tokenizer.eos_id()) ids.eos.push_back(*tokenizer.eos_id());
  for (const std::int64_t id : config.eos_token_id)
    if (std::ranges::find(ids.eos, id) == ids.eos.end()) ids.eos.push_back(id);
  if (tokenizer.pad_id())
    ids.pad = *tokenizer.pad_id();
  else if (config.pad_token_id)
    ids.pad = *config.pad_token_id;
  else if (!ids.eos.empty())
    ids.pad = ids.eos[0];
  return ids;
}

void check_vocabulary(const Tokenizer& tokenizer, std::int64_t vocab_size) {
  require(tokenizer.vocab_size() <= vocab_size, "the tokenizer has token ids up to ",
          tokenizer.vocab_size() - 1, ", the model's vocab_size is ", vocab_size,
          "; want the tokenizer the model was made with");
}

}  // namespace nemocube
