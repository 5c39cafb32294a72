#pragma once
#include <map>
#include <optional>
#include <string>

#include "data/tokenizer/tokenizer.h"
#include "model/config.h"
#include "train/recipe/recipe.h"

namespace nemocube {

/// Turns `files`, which came with the model of a run (WeightFiles::other_files),
/// into the files that its checkpoints carry:
///   - the tokenizer of the training data replaces the model's;
///   - where the run begins with an adapter, the adapter's generation_config.json replaces the model's, so
///     that the same ids end a text;
///   - where chat rows end a turn with a token that ends no text yet, generation_config.json gets the token.
/// Returns the warning about that token; empty where there is none. `tokenizer`: of the training data.
/// Throws Error naming a file that cannot be read.
std::string carry_files(const Recipe& recipe, const std::optional<Tokenizer>& tokenizer,
                        const ModelConfig& config, std::map<std::string, std::string>& files);

}  // namespace nemocube
