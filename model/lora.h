#pragma once
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "ops/lora/lora.h"

/// Low-rank adapters of a model (LoRA, docs/lora.md): y = W x + b + s B A x for each adapted weight W.
namespace nemocube {

/// How fresh values of A are drawn; B begins with zeros. Numbers of inputs `in` and rank r are those of the weight; a stack of E
/// experts is drawn by other rules, those of NeMo AutoModel (see model/initialise.h).
enum class LoraInitialisation : std::uint8_t {
  xavier,  ///< normal, standard deviation sqrt(2 / (in + r))
  kaiming  ///< uniform in +-1 / sqrt(in): PEFT's
};

constexpr std::int64_t largest_adapter_rank = 1 << 20;

struct LoraModule {
  std::int64_t rank = 8;
  double alpha = 32;
  bool rank_stabilised = false;  ///< rsLoRA
  /// s = alpha / r, with rsLoRA alpha / sqrt(r).
  double scale() const {
    const auto r = static_cast<double>(rank);
    return alpha / (rank_stabilised ? std::sqrt(r) : r);
  }
  bool operator==(const LoraModule&) const = default;
};

struct LoraAdapters {
  /// By the canonical name of the adapted module, which is that of its weight without ".weight": "backbone.layers.0.mixer.in_proj",
  /// "lm_head", and "backbone.layers.1.mixer.experts.up_proj" for a stack of experts. The adapter of module M has the tensors
  /// M.lora_A.weight [r, in] and M.lora_B.weight [out, r], of a stack [experts, r, in] and [experts, out, r].
  std::map<std::string, LoraModule, std::less<>> modules;
  bool f32 = false;  ///< A and B are f32, whatever the dtype of the weights
  LoraInitialisation initialisation = LoraInitialisation::xavier;
  double dropout = 0;  ///< in [0, 1), in training; not in routed experts
  DropoutPosition dropout_position = DropoutPosition::post;
  std::uint64_t dropout_seed = 0;

  bool operator==(const LoraAdapters&) const = default;
};

}  // namespace nemocube
