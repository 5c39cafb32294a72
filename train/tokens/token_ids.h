#pragma once
#include <cstdint>
#include <filesystem>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "model/config.h"

namespace nemocube {

/// Ids that end a generated text: the tokenizer's EOS and the ids of the model in `model_dir` (from
/// generation_config.json where it names any, else from config.json).
std::vector<std::int64_t> stop_ids(const Tokenizer& tokenizer, const ModelConfig& config,
                                   const std::filesystem::path& model_dir);

/// Throws Error when the tokenizer can make ids that a model of `vocab_size` does not know.
void check_vocabulary(const Tokenizer& tokenizer, std::int64_t vocab_size);

}  // namespace nemocube
