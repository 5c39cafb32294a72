#include "data/hf/language_part.h"

#include <algorithm>
#include <array>
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

/// A name that a language model alone has, such as "backbone.layers.0.norm.weight".
bool is_plain_language_name(std::string_view name) {
  for (const std::string_view prefix : {"backbone.", "model."})
    if (name.starts_with(prefix)) {
      name.remove_prefix(prefix.size());
      break;
    }
  constexpr std::array<std::string_view, 4> inside{"layers.", "embeddings.", "embedding.", "norm_f."};
  return is_head(name) ||
         std::ranges::any_of(inside, [&](std::string_view part) { return name.starts_with(part); });
}

bool has_several_parts(const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / "config.json";
  std::error_code none;
  if (!std::filesystem::exists(file, none)) return false;
  const Json config = read_json_file(file);
  return language_part(JsonView(config, file.string())).has_value();
}

}  // namespace

std::function<bool(std::string_view)> language_tensors(const std::filesystem::path& directory,
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
  if (has_several_parts(directory))
    return [](std::string_view name) { return is_plain_language_name(without_wrappers(name)); };
  return [](std::string_view) { return true; };
}

}  // namespace nemocube
