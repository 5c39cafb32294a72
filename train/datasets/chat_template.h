#pragma once
#include <filesystem>
#include <optional>

#include "train/recipe/recipe.h"

namespace nemocube {

/// The file that holds the chat template of a tokenizer (its folder, or its tokenizer.json):
/// chat_template.jinja, chat_template.json, or tokenizer_config.json with a key `chat_template`. Nothing when
/// there is no template.
std::optional<std::filesystem::path> find_chat_template(const std::filesystem::path& tokenizer);

/// This build renders rows of squad and messages without a template. Throws Error where NeMo AutoModel would
/// apply one: when the section names a template, or when the tokenizer has one and the section does not say
/// `chat_template: null`. Rows of squad with truncation to seq_length never get a template; a message says
/// so.
void check_chat_template(const DatasetSection& section, const std::filesystem::path& tokenizer);

}  // namespace nemocube
