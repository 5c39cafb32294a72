#include "data/hf/language_part.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>

#include "data/hf/families/family.h"

namespace nemocube {
namespace {
constexpr std::string_view language_prefix = "language_model.",
                           inner_language_prefix = "model.language_model.";
}  // namespace

std::optional<JsonView> language_part(const JsonView& config) {
  if (!config.value().is_object() || find_family(config)) return std::nullopt;
  for (const char* key : {"llm_config", "text_config", "language_config"}) {
    const auto part = config.find(key);
    if (part && part->value().is_object() && find_family(*part)) return part;
  }
  return std::nullopt;
}

std::string without_wrappers(std::string_view name_in_file) {
  constexpr std::string_view data_parallel = "module.";
  constexpr std::string_view anywhere[] = {"_orig_mod.", "_fsdp_wrapped_module.",
                                           "_checkpoint_wrapped_module."};
  while (name_in_file.starts_with(data_parallel)) name_in_file.remove_prefix(data_parallel.size());
  std::string name(name_in_file);
  for (const std::string_view wrapper : anywhere)
    for (std::size_t at = name.find(wrapper); at != name.npos; at = name.find(wrapper, at))
      if (at == 0 || name[at - 1] == '.')
        name.erase(at, wrapper.size());
      else
        ++at;
  return name.starts_with(data_parallel) ? without_wrappers(name) : name;
}

std::string without_language_prefix(std::string_view name_in_file) {
  std::string name = without_wrappers(name_in_file);
  for (const std::string_view prefix : {inner_language_prefix, language_prefix})
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  return name;
}

namespace {

bool is_head(std::string_view name) { return name.starts_with("lm_head.") || name.starts_with("mtp."); }

/// Whether a language model alone has the name, such as "backbone.layers.0.norm.weight".
bool is_plain_language_name(std::string_view name, const NameTable& names) {
  return is_head(name) || names.knows(names.canonical(name));
}

}  // namespace

DirectoryModel directory_model(const std::filesystem::path& directory) {
  DirectoryModel model{families().front()->names, false};
  const std::filesystem::path file = directory / "config.json";
  std::error_code none;
  if (!std::filesystem::exists(file, none)) return model;
  const Json document = read_json_file(file);
  const JsonView config(document, file.string());
  const std::optional<JsonView> part = language_part(config);
  model.several_parts = part.has_value();
  if (!config.value().is_object()) return model;
  if (const Family* family = find_family(part ? *part : config)) model.names = family->names;
  return model;
}

std::function<bool(std::string_view)> language_tensors(const DirectoryModel& model,
                                                       const SafetensorsTensors& tensors) {
  const auto any_begins_with = [&](std::string_view prefix) {
    return std::ranges::any_of(
        tensors, [&](const auto& item) { return without_wrappers(item.first).starts_with(prefix); });
  };
  if (any_begins_with(language_prefix))
    return [](std::string_view name) { return without_wrappers(name).starts_with(language_prefix); };
  if (any_begins_with(inner_language_prefix))
    return [](std::string_view name_in_file) {
      const std::string name = without_wrappers(name_in_file);
      return name.starts_with(inner_language_prefix) || is_head(name);
    };
  if (model.several_parts)
    return [names = model.names](std::string_view name) {
      return is_plain_language_name(without_wrappers(name), *names);
    };
  return [](std::string_view) { return true; };
}

}  // namespace nemocube
