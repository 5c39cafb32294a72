#include "data/chat/template_files.h"

#include <nlohmann/json.hpp>

#include "core/quote.h"
#include "data/chat/chat.h"
#include "data/files/regular_file.h"
#include "data/json/json.h"
#include "data/tokenizer/declared_tokens.h"

namespace nemocube {

namespace {

using Templates = std::map<std::string, StoredTemplate>;
namespace fs = std::filesystem;

// Templates have at most 1 MiB; in a JSON file they take more, because JSON escapes characters.
constexpr std::int64_t max_template_bytes = std::int64_t{4} << 20;

void add_file(Templates& templates, const std::string& name, const fs::path& file) {
  templates[name] = {file.string(), read_text_file(file, max_template_bytes)};
}

Templates templates_in_files(const fs::path& folder) {
  Templates templates;
  if (fs::exists(folder / "chat_template.jinja"))
    add_file(templates, "default", folder / "chat_template.jinja");
  const fs::path more = folder / "additional_chat_templates";
  if (!fs::is_directory(more)) return templates;
  for (const auto& entry : fs::directory_iterator(more))
    if (entry.path().extension() == ".jinja") add_file(templates, entry.path().stem().string(), entry.path());
  return templates;
}

Templates templates_in_config(const fs::path& config) {
  Templates templates;
  const Json json = read_json_file(config);
  const auto found = JsonView(json, config.string()).find("chat_template");
  if (!found) return templates;
  const std::string place = config.string() + ": chat_template";
  const auto add = [&](const std::string& name, const JsonView& source) {
    templates[name] = {cat(place, ", ", name), std::string(source.string())};
  };
  if (found->value().is_string())
    templates["default"] = {place, std::string(found->string())};
  else if (found->value().is_array())
    for (const JsonView& one : found->elements())
      add(std::string(one.at("name").string()), one.at("template"));
  else if (found->value().is_object())
    for (const auto& item : found->value().items()) add(item.key(), found->member(item.key()));
  else
    found->refuse("a text, a list of {name, template}, or an object with templates by name");
  return templates;
}

std::string names_of(const Templates& templates) {
  std::string names;
  for (const auto& [name, stored] : templates) names += cat(names.empty() ? "" : ", ", name);
  return names;
}

StoredTemplate template_of_file(const fs::path& file) {
  std::string text = read_text_file(file, max_template_bytes);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  const bool object = first != std::string::npos && text[first] == '{' && first + 1 < text.size() &&
                      std::string_view("{%#").find(text[first + 1]) == std::string_view::npos;
  if (!object) return {file.string(), std::move(text)};
  const Json json = parse_json(text, file.string());
  return {file.string() + ": chat_template",
          std::string(JsonView(json, file.string()).at("chat_template").string())};
}

}  // namespace

std::map<std::string, StoredTemplate> stored_templates(const fs::path& folder) {
  Templates templates = templates_in_files(folder);
  const fs::path config = folder / "tokenizer_config.json";
  if (templates.empty() && fs::exists(config)) return templates_in_config(config);
  return templates;
}

ChatTemplate::SpecialTokens special_tokens_of(const fs::path& folder) {
  const auto named = tok::read_declared_tokens(folder, std::nullopt).named;
  return {named.begin(), named.end()};
}

StoredTemplate chosen_template(const fs::path& folder, const std::optional<std::string>& wanted,
                               bool with_tools) {
  if (wanted && (wanted->find("{{") != wanted->npos || wanted->find("{%") != wanted->npos))
    return {"the given chat template", *wanted};
  const Templates templates = stored_templates(folder);
  if (wanted) {
    if (const auto found = templates.find(*wanted); found != templates.end()) return found->second;
    require(fs::exists(*wanted), "chat template: want Jinja text, a file, or the name of a template of ",
            folder.string(), " (", templates.empty() ? "which has none" : names_of(templates), "), got ",
            quote(*wanted));
    return template_of_file(*wanted);
  }
  if (const auto found = templates.find("tool_use"); with_tools && found != templates.end())
    return found->second;
  if (const auto found = templates.find("default"); found != templates.end()) return found->second;
  require(
      !templates.empty(), folder.string(),
      ": has no chat template; want chat_template.jinja, or the key chat_template in tokenizer_config.json",
      fs::exists(folder / "chat_template.json")
          ? " (chat_template.json belongs to a processor and is not read)"
          : "");
  fail(folder.string(), ": has several chat templates and none with the name default; want one of ",
       names_of(templates));
}

const ChatTemplate& ChatTemplates::of(const Chat& chat) const {
  return chat.tools ? with_tools : without_tools;
}

ChatTemplate load_chat_template(const fs::path& folder, const std::optional<std::string>& wanted,
                                bool with_tools) {
  const StoredTemplate chosen = chosen_template(folder, wanted, with_tools);
  return ChatTemplate(chosen.place, chosen.source, special_tokens_of(folder));
}

ChatTemplates load_chat_templates(const fs::path& folder, const std::optional<std::string>& wanted) {
  return {load_chat_template(folder, wanted, false), load_chat_template(folder, wanted, true)};
}

}  // namespace nemocube
