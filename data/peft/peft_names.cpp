#include "data/peft/peft_names.h"

#include "core/error.h"
#include "data/hf/hf_weights.h"
#include "data/hf/language_part.h"

namespace nemocube {
namespace {
constexpr std::string_view peft_prefix = "base_model.model.";
}  // namespace

AdaptableWeights adaptable_weights(const ModelSetup& setup) {
  AdaptableWeights weights;
  for (const TensorSpec& spec : tensor_specs(setup)) {
    if (!spec.linear) continue;
    const int last = spec.shape.ndim() - 1;
    weights[std::string(module_of_weight(spec.name))] = {
        spec.experts ? spec.shape[0] : 0, spec.shape[last - 1], spec.shape[last],
        spec.experts ? setup.config.of_tensor(spec.id).moe.num_experts_per_tok : 0};
  }
  return weights;
}

std::string without_peft_prefix(std::string_view key) {
  const std::string name = without_wrappers(key);
  return name.starts_with(peft_prefix) ? without_wrappers(name.substr(peft_prefix.size())) : name;
}

std::optional<PeftKey> parse_peft_key(std::string_view key) {
  constexpr std::string_view ending = ".weight";
  std::string name = without_peft_prefix(key);
  if (!name.ends_with(ending)) return std::nullopt;
  name.resize(name.size() - ending.size());
  for (const char factor : {'A', 'B'}) {
    const std::string mark = cat(".lora_", factor);
    const std::size_t at = name.rfind(mark);
    if (at == name.npos || at == 0) continue;
    const std::string_view adapter = std::string_view(name).substr(at + mark.size());
    if (adapter.empty() || (adapter.size() > 1 && adapter.rfind('.') == 0))
      return PeftKey{name.substr(0, at), factor};
  }
  return std::nullopt;
}

std::string peft_key(std::string_view path, char factor) {
  return cat(peft_prefix, factor_name(path, factor));
}

std::string canonical_module(std::string_view path_in_file, const ModelNames& names) {
  return names.table().canonical(without_language_prefix(path_in_file));
}

std::vector<std::string> expert_paths(std::string_view stack, std::string_view expert) {
  constexpr std::string_view ending = ".weight";
  std::vector<std::string> paths = expert_tensor_names(stack, expert);
  for (std::string& path : paths) path.resize(path.size() - ending.size());
  return paths;
}

std::string_view module_of_weight(std::string_view name) {
  constexpr std::string_view ending = ".weight";
  return name.ends_with(ending) ? name.substr(0, name.size() - ending.size()) : name;
}

std::string factor_name(std::string_view module, char factor) {
  return cat(module, ".lora_", factor, ".weight");
}

}  // namespace nemocube
