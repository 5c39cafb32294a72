#include "data/peft/peft_names.h"

#include "core/error.h"

namespace nemocube {
namespace {
constexpr std::string_view peft_prefix = "base_model.model.";
}  // namespace

AdaptableWeights adaptable_weights(const NemotronHConfig& config) {
  AdaptableWeights weights;
  for (const TensorSpec& spec : tensor_specs(config)) {
    if (!spec.linear) continue;
    const int last = spec.shape.ndim() - 1;
    weights[std::string(module_of_weight(spec.name))] = {
        spec.experts ? spec.shape[0] : 0, spec.shape[last - 1], spec.shape[last],
        spec.experts ? config.of_tensor(spec.name).num_experts_per_tok : 0};
  }
  return weights;
}

std::string_view without_peft_prefix(std::string_view key) {
  if (key.starts_with(peft_prefix)) key.remove_prefix(peft_prefix.size());
  return key;
}

std::optional<PeftKey> parse_peft_key(std::string_view key) {
  const std::string_view name = without_peft_prefix(key);
  for (const char factor : {'A', 'B'})
    if (const std::string ending = factor_name("", factor);
        name.ends_with(ending) && name.size() > ending.size())
      return PeftKey{std::string(name.substr(0, name.size() - ending.size())), factor};
  return std::nullopt;
}

std::string peft_key(std::string_view path, char factor) {
  return cat(peft_prefix, factor_name(path, factor));
}

std::string canonical_module(std::string_view path) {
  if (path.starts_with("model.")) return cat("backbone.", path.substr(6));
  if (path.starts_with("layers.")) return cat("backbone.", path);
  return std::string(path);
}

std::string peft_path(std::string_view canonical) {
  constexpr std::string_view backbone = "backbone.";
  return canonical.starts_with(backbone) ? cat("model.", canonical.substr(backbone.size()))
                                         : std::string(canonical);
}

std::string expert_path(std::string_view stack, std::string_view expert) {
  const std::size_t dot = stack.rfind('.');
  return cat(stack.substr(0, dot + 1), expert, stack.substr(dot));
}

std::string factor_name(std::string_view module, char factor) {
  return cat(module, ".lora_", factor, ".weight");
}

}  // namespace nemocube
