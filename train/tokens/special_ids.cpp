#include "train/tokens/special_ids.h"

#include <algorithm>

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

}  // namespace nemocube
