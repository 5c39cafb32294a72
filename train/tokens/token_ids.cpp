#include "train/tokens/token_ids.h"

#include <algorithm>

#include "core/error.h"
#include "core/quote.h"
#include "data/hf/hf_config.h"

namespace nemocube {

std::vector<std::int64_t> stop_ids(const Tokenizer& tokenizer, const ModelConfig& config,
                                   const std::filesystem::path& model_dir) {
  std::vector<std::int64_t> ids;
  if (tokenizer.eos_id()) ids.push_back(*tokenizer.eos_id());
  for (const std::int64_t id : end_of_text_ids(model_dir, config))
    if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
  return ids;
}

void check_vocabulary(const Tokenizer& tokenizer, std::int64_t vocab_size) {
  const std::int64_t highest = tokenizer.vocab_size() - 1;
  if (highest < vocab_size) return;
  const std::string place = tokenizer.declared_in(highest);
  require(place.empty(), place, " adds the token ",
          place.empty() ? "" : quote(tokenizer.id_to_token(highest)), " to the tokenizer with the id ",
          highest, ", and the model's vocab_size is ", vocab_size,
          "; want a token that the model has, or a model with more embeddings");
  fail("the tokenizer has token ids up to ", highest, ", the model's vocab_size is ", vocab_size,
       "; want the tokenizer the model was made with");
}

}  // namespace nemocube
