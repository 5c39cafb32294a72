#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "data/datasets/squad.h"
#include "data/loader/loader.h"
#include "train/recipe/recipe.h"

namespace nemocube {

/// The tokenizer a dataset section asks for; nothing for data that is tokens already (mock, tokens). Throws Error
/// where its rows would want a chat template, see check_chat_template().
std::optional<Tokenizer> recipe_tokenizer(const Recipe& recipe, const DatasetSection& section);

/// Whether a file of a model's folder belongs to its tokenizer (chat templates do).
bool is_tokenizer_file(const std::string& name);
/// Name and text of the tokenizer files that travel with a model trained with a section's tokenizer. pre: it has one
std::map<std::string, std::string> tokenizer_files(const Recipe& recipe, const DatasetSection& section);

/// The data set of a section, packed when `packed` and the recipe packs. `tokenizer` is that of the section.
std::shared_ptr<const Dataset> recipe_dataset(const Recipe& recipe, const DatasetSection& section,
                                              const std::optional<Tokenizer>& tokenizer, bool packed);

/// Throws Error when the data can hold token ids that a model of `vocab_size` does not know: a tokenizer or a
/// mock data set with more, or an id of a tokens file, all of whose rows are read.
void check_vocabulary(const DatasetSection& section, const std::optional<Tokenizer>& tokenizer,
                      const Dataset& dataset, std::int64_t vocab_size);

/// Selection of questions of a squad section.
SquadOptions squad_options(const DatasetSection& section);

}  // namespace nemocube
