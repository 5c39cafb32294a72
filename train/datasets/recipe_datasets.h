#pragma once
#include <memory>
#include <optional>

#include "data/datasets/squad.h"
#include "data/loader/loader.h"
#include "train/recipe/recipe.h"

namespace nemocube {

/// The tokenizer a dataset section asks for; nothing for data that is tokens already (mock, tokens).
std::optional<Tokenizer> recipe_tokenizer(const Recipe& recipe, const DatasetSection& section);

/// The data set of a section, packed when `packed` and the recipe packs. `tokenizer` is that of the section.
std::shared_ptr<const Dataset> recipe_dataset(const Recipe& recipe, const DatasetSection& section,
                                              const std::optional<Tokenizer>& tokenizer, bool packed);

/// Selection of questions of a squad section.
SquadOptions squad_options(const DatasetSection& section);

}  // namespace nemocube
