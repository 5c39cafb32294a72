#include "data/hf/module_names.h"

#include <charconv>
#include <optional>

namespace nemocube {
namespace {

constexpr std::string_view body = "backbone", body_of_classes = "model";

/// The name without the prefix of the model's body; nothing for a name that has none.
std::optional<std::string_view> name_in_body(std::string_view name) {
  for (const std::string_view prefix : {body, body_of_classes})
    if (name.starts_with(prefix) && name.substr(prefix.size()).starts_with('.'))
      return name.substr(prefix.size() + 1);
  return {};
}

/// N of "layers.N".
std::optional<std::int64_t> number_of_layer(std::string_view name) {
  constexpr std::string_view prefix = "layers.";
  if (!name.starts_with(prefix)) return {};
  name.remove_prefix(prefix.size());
  std::int64_t number = 0;
  const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  return error == std::errc() && stop == name.data() + name.size() && number >= 0 ? std::optional(number)
                                                                                  : std::nullopt;
}

std::optional<TensorName> module_of_stage(std::string_view name) {
  if (name == "lm_head") return head_name();
  const auto inner = name_in_body(name);
  if (!inner) return {};
  if (*inner == "embeddings" || *inner == "embed_tokens") return embeddings_name();
  if (*inner == "norm_f" || *inner == "norm") return final_norm_name();
  if (const auto number = number_of_layer(*inner)) return block_name(*number);
  return {};
}

}  // namespace

std::string automodel_name(std::string_view name_in_files) {
  if (name_in_files == body) return std::string(body_of_classes);
  if (!name_in_files.starts_with(body) || name_in_files.substr(body.size(), 1) != ".")
    return std::string(name_in_files);
  return cat(body_of_classes, name_in_files.substr(body.size()));
}

StageModules stage_modules(const ModelConfig& config) {
  return {.names = config.names,
          .find = module_of_stage,
          .has_no_parameters = [](std::string_view name) { return name_in_body(name) == "rotary_emb"; },
          .wanted =
              "backbone.embeddings, backbone.layers.N, backbone.norm_f, lm_head or "
              "backbone.rotary_emb (or model.embed_tokens, model.layers.N, model.norm, "
              "model.rotary_emb)"};
}

}  // namespace nemocube
