#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/chat/template_files.h"
#include "data/tokenizer/tokenizer.h"
#include "model/config.h"
#include "train/recipe/recipe.h"

namespace nemocube {

/// The chat templates by which the rows of a section are written; nothing where they are written without one.
///   - squad, messages: the section's `chat_template` where it is there, and null is none; else the
///     tokenizer's own where it has one. Rows of squad that are cut to seq_length get none unless the section
///     names one, because cutting would leave a conversation without its beginning.
///   - column_mapped: the tokenizer's own with `use_hf_chat_template`; Error when it has none.
///   - other classes have none.
/// The present moment is Recipe::moment in all their renderings.
/// The section's chat_template_kwargs are variables of all renderings.
/// Throws Error naming the key when the section names a template that is not there.
std::optional<ChatTemplates> recipe_chat_templates(const Recipe& recipe, const DatasetSection& section);

/// Where they are and what they say.
struct TemplateTexts {
  StoredTemplate without_tools, with_tools;
};
std::optional<TemplateTexts> recipe_template_texts(const Recipe& recipe, const DatasetSection& section);
/// Whether they may show the present moment: whether strftime_now is in them.
bool shows_moment(const Recipe& recipe, const DatasetSection& section);

/// The one for conversations without tools.
std::optional<ChatTemplate> recipe_chat_template(const Recipe& recipe, const DatasetSection& section);

/// A token that ends the assistant's turns in the rows of a section, while a model does not stop at it.
struct EndOfTurn {
  std::int64_t id = 0;
  std::vector<std::int64_t> stop_ids{};  ///< those that the model stops at
  /// A sentence that names all of them.
  std::string warning(const DatasetSection& section, const Tokenizer& tokenizer) const;
};
/// end_of_turn() of the templates by which the section's rows are written, for the stop_ids() of the recipe's
/// model. Nothing where there are no templates.
std::optional<EndOfTurn> recipe_end_of_turn(const Recipe& recipe, const DatasetSection& section,
                                            const Tokenizer& tokenizer, const ModelConfig& config);

/// A line of the log where rows of squad do not get the tokenizer's template because they are cut.
void tell_unused_chat_template(const Recipe& recipe, const DatasetSection& section);

}  // namespace nemocube
