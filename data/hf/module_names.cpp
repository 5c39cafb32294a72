#include "data/hf/module_names.h"

namespace nemocube {
namespace {

/// Whether the text is that of a module below the model's body, and of which: "layers.3".
std::optional<std::string_view> name_in_body(const NameTable& table, std::string_view text) {
  for (const std::string_view body : {table.body, table.class_body})
    if (text.starts_with(body) && text.substr(body.size()).starts_with('.'))
      return text.substr(body.size() + 1);
  return {};
}

std::optional<TensorName> module_of_stage(const ModelNames& names, std::string_view text) {
  if (text == names.text(head_name())) return head_name();
  const auto inner = name_in_body(names.table(), text);
  if (!inner) return {};
  const std::string canonical = names.table().canonical(text);
  if (*inner == "embed_tokens" || canonical == names.text(embeddings_name())) return embeddings_name();
  if (*inner == "norm" || canonical == names.text(final_norm_name())) return final_norm_name();
  if (const auto layer = names.find_layer(canonical)) return block_name(*layer);
  return {};
}

/// "backbone.embeddings, backbone.layers.N, backbone.norm_f, lm_head or backbone.rotary_emb", and the same
/// names in classes.
std::string wanted_modules(const ModelNames& names) {
  const NameTable& table = names.table();
  const std::string first_layer = names.layer_text(0);
  std::string text =
      cat(names.text(embeddings_name()), ", ", first_layer.substr(0, first_layer.size() - 1), "N, ",
          names.text(final_norm_name()), ", ", names.text(head_name()), " or ", table.body, ".rotary_emb");
  if (table.body == table.class_body) return text;
  const std::string_view body = table.class_body;
  return cat(text, " (or ", body, ".embed_tokens, ", body, ".layers.N, ", body, ".norm, ", body,
             ".rotary_emb)");
}

}  // namespace

StageModules stage_modules(const ModelConfig& config) {
  return {
      .names = config.names,
      .find = [names = config.names](std::string_view text) { return module_of_stage(names, text); },
      .has_no_parameters = [&table = config.names.table()](
                               std::string_view text) { return name_in_body(table, text) == "rotary_emb"; },
      .wanted = wanted_modules(config.names)};
}

}  // namespace nemocube
