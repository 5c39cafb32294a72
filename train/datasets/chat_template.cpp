#include "train/datasets/chat_template.h"

#include <nlohmann/json.hpp>

#include "core/log.h"
#include "core/quote.h"
#include "data/chat/end_of_turn.h"
#include "train/recipe/files.h"
#include "train/tokens/token_ids.h"

namespace nemocube {

namespace {

/// Where the tokenizer has its own templates, for messages; empty when it has none.
std::string own_place(const std::filesystem::path& folder) {
  const auto templates = stored_templates(folder);
  return templates.empty() ? "" : templates.begin()->second.place;
}

bool cuts_questions(const DatasetSection& section) {
  return section.kind == DatasetKind::squad && section.truncation && section.seq_length;
}

/// Whether a section that names no template gets the tokenizer's, which is at `place`.
bool gets_own(const DatasetSection& section, const std::string& place) {
  if (section.kind == DatasetKind::column_mapped) return section.use_hf_chat_template;
  return !place.empty() && !cuts_questions(section);
}

void set_variables(ChatTemplates& templates, const TemplateVariables& variables) {
  if (variables.json.empty()) return;
  const Json json = parse_json(variables.json, "chat_template_kwargs");
  templates.without_tools.set_variables(json);
  templates.with_tools.set_variables(json);
}

/// What `load(folder, wanted)` makes of the templates of a section; nothing where the section has none.
template <class Load>
auto of_section(const Recipe& recipe, const DatasetSection& section, const Load& load)
    -> std::optional<decltype(load(std::filesystem::path(), std::optional<std::string>()))> {
  if (section.kind != DatasetKind::squad && section.kind != DatasetKind::messages &&
      section.kind != DatasetKind::column_mapped)
    return std::nullopt;
  if (section.chat_template && !section.chat_template->has_value()) return std::nullopt;
  const std::filesystem::path folder = folder_of(existing_tokenizer_path(recipe, section));
  if (!section.chat_template && !gets_own(section, own_place(folder))) return std::nullopt;
  const char* key =
      section.kind == DatasetKind::column_mapped ? ".use_hf_chat_template: " : ".chat_template: ";
  try {
    return load(folder, section.chat_template.value_or(std::nullopt));
  } catch (const Error& error) {
    fail(section.key, key, error.what());
  }
}

}  // namespace

std::optional<ChatTemplates> recipe_chat_templates(const Recipe& recipe, const DatasetSection& section) {
  auto templates = of_section(recipe, section, load_chat_templates);
  if (!templates) return templates;
  const Moment moment = recipe.moment ? *recipe.moment : Moment::now();
  templates->without_tools.set_time(moment);
  templates->with_tools.set_time(moment);
  set_variables(*templates, section.chat_template_kwargs);
  return templates;
}

std::optional<TemplateTexts> recipe_template_texts(const Recipe& recipe, const DatasetSection& section) {
  return of_section(
      recipe, section, [](const std::filesystem::path& folder, const std::optional<std::string>& wanted) {
        return TemplateTexts{chosen_template(folder, wanted, false), chosen_template(folder, wanted, true)};
      });
}

bool shows_moment(const Recipe& recipe, const DatasetSection& section) {
  const auto texts = recipe_template_texts(recipe, section);
  const auto shows = [](const StoredTemplate& text) {
    return text.source.find("strftime_now") != std::string::npos;
  };
  return texts && (shows(texts->without_tools) || shows(texts->with_tools));
}

std::optional<ChatTemplate> recipe_chat_template(const Recipe& recipe, const DatasetSection& section) {
  auto templates = recipe_chat_templates(recipe, section);
  return templates ? std::optional(std::move(templates->without_tools)) : std::nullopt;
}

std::optional<EndOfTurn> recipe_end_of_turn(const Recipe& recipe, const DatasetSection& section,
                                            const Tokenizer& tokenizer, const ModelConfig& config) {
  const auto templates = recipe_chat_templates(recipe, section);
  if (!templates) return std::nullopt;
  EndOfTurn found{0, stop_ids(tokenizer, config, model_and_adapter(recipe).generation_folder())};
  for (const ChatTemplate* one : {&templates->without_tools, &templates->with_tools})
    if (const auto end = end_of_turn(*one, tokenizer, found.stop_ids)) {
      found.id = *end;
      return found;
    }
  return std::nullopt;
}

std::string EndOfTurn::warning(const DatasetSection& section, const Tokenizer& tokenizer) const {
  const auto named = [&](std::int64_t token) {
    const bool known = token >= 0 && token < tokenizer.vocab_size();
    return known ? cat(quote(tokenizer.id_to_token(token)), " (id ", token, ")") : cat("id ", token);
  };
  std::string stops;
  for (const std::int64_t token : stop_ids) stops += cat(stops.empty() ? "" : ", ", named(token));
  return cat(section.key, ": the chat template ends the assistant's turns with ", named(id),
             stops.empty() ? ", and no token is known to end a text"
                           : cat(", which the model does not stop at, but at ", stops),
             ": generation_config.json of checkpoints names both, and generate --chat stops at both; other "
             "programs may go on behind an answer unless they are told to stop at the former");
}

void tell_unused_chat_template(const Recipe& recipe, const DatasetSection& section) {
  if (section.chat_template || !cuts_questions(section)) return;
  const std::string place = own_place(folder_of(existing_tokenizer_path(recipe, section)));
  if (!place.empty())
    log_info(section.key, ": truncation to seq_length, so the rows get no chat template; that of ", place,
             " is not used");
}

}  // namespace nemocube
