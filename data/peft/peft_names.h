#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "model/config.h"

/// Names of adapters: in memory (model/lora.h) and in files of PEFT.
namespace nemocube {

/// A weight of the model that can have an adapter: of a linear layer [out, in], or of a stack of experts
/// [experts, out, in].
struct AdaptableWeight {
  std::int64_t experts = 0;  ///< 0: a linear layer
  std::int64_t out = 0, in = 0;
  std::int64_t top_k = 0;  ///< experts of a token
};
/// By canonical module name: linear layers, lm_head and stacks of experts. Embeddings, convolutions and the
/// router's gate have no adapters.
using AdaptableWeights = std::map<std::string, AdaptableWeight, std::less<>>;
AdaptableWeights adaptable_weights(const ModelSetup& setup);

/// The stacks of a module with experts, "....mixer.experts", in the order in which PEFT
/// wraps them: where both have an adapter, the first one is named
/// "....mixer.experts.base_layer", the second one "....mixer.experts".
constexpr std::string_view outer_stack = "down_proj";
constexpr std::array<std::string_view, 3> expert_stacks{"up_proj", "gate_up_proj", outer_stack};
constexpr std::string_view wrapped_stack = ".base_layer";

/// The name of a tensor with an adapter: "base_model.model.PATH.lora_A.weight", where "base_model.model." may
/// be missing, and the name of the adapter may stand before "weight", as in PEFT's memory:
/// "....lora_A.default.weight". Additions of module wrappers (without_wrappers()) are left out.
struct PeftKey {
  std::string path;   ///< "model.layers.0.mixer.q_proj"
  char factor = 'A';  ///< or B
};
std::optional<PeftKey> parse_peft_key(std::string_view key);
/// The key without "base_model.model." and without additions of module wrappers.
std::string without_peft_prefix(std::string_view key);
std::string peft_key(std::string_view path, char factor);

/// NameTable::canonical() of a path: "model.layers.0.mixer.q_proj", "backbone.layers.0.mixer.q_proj" and
/// "layers.0.mixer.q_proj" -> the second of them. A prefix of language models may stand before them
/// (without_language_prefix()). The way back is NameTable::class_name().
std::string canonical_module(std::string_view path_in_file, const ModelNames& names);
/// The layers of one expert: "....mixer.experts.up_proj", 3 -> "....mixer.experts.3.up_proj", and of
/// "....mlp.experts.gate_up_proj" gate_proj and up_proj, each with half of the rows.
std::vector<std::string> expert_paths(std::string_view stack, std::string_view expert);

/// The module of a weight, by which adapters are named: the name without ".weight".
std::string_view module_of_weight(std::string_view name);
/// A tensor of an adapter in memory: "M.lora_A.weight".
std::string factor_name(std::string_view module, char factor);

}  // namespace nemocube
