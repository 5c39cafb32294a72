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

/// The chat templates by which the rows of a section are written; nothing for rows without a template.
///   - squad, messages: the section's `chat_template` where it is given (null: no template); else the
///     tokenizer's own where it has one. Rows of squad that are cut to seq_length get no template unless the
///     section names one, because cutting would leave a conversation without its beginning.
///   - column_mapped: the tokenizer's own with `use_hf_chat_template`; Error when it has none.
///   - other classes have none.
/// Recipe::moment is the present moment in all renderings. The section's
/// chat_template_kwargs are variables of all renderings. Throws Error naming the key when
/// the section names a template that does not exist.
std::optional<ChatTemplates> recipe_chat_templates(const Recipe& recipe, const DatasetSection& section);

/// The places of the templates, and their texts.
struct TemplateTexts {
  StoredTemplate without_tools, with_tools;
};
std::optional<TemplateTexts> recipe_template_texts(const Recipe& recipe, const DatasetSection& section);
/// Whether the templates may show the present moment: whether strftime_now is in them.
bool shows_moment(const Recipe& recipe, const DatasetSection& section);

/// The template for conversations without tools.
std::optional<ChatTemplate> recipe_chat_template(const Recipe& recipe, const DatasetSection& section);

/// A token that ends the assistant's turns in the rows of a section, while a model does not stop at it.
struct EndOfTurn {
  std::int64_t id = 0;
  std::vector<std::int64_t> stop_ids{};  ///< the ids that the model stops at
  /// A warning, one sentence, that names token and stop_ids.
  std::string warning(const DatasetSection& section, const Tokenizer& tokenizer) const;
};
/// end_of_turn() of the templates by which the section's rows are written, for the stop_ids() of the recipe's
/// model. Nothing without templates.
std::optional<EndOfTurn> recipe_end_of_turn(const Recipe& recipe, const DatasetSection& section,
                                            const Tokenizer& tokenizer, const ModelConfig& config);

/// A line of the log where rows of squad do not get the tokenizer's template because they are cut.
void tell_unused_chat_template(const Recipe& recipe, const DatasetSection& section);

}  // namespace nemocube
