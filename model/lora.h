#pragma once
#include <cmath>
#include <cstdint>
#include <map>

#include "model/tensor_name.h"
#include "ops/lora/lora.h"

/// Low-rank adapters of a model (LoRA, docs/lora.md): y = W x + b + s B A x for each adapted weight W.
namespace nemocube {

/// How fresh values of A are drawn; B begins with zeros. The scale depends on the weight's number of inputs
/// `in` and rank r. A stack of E experts is drawn by NeMo AutoModel's rules for it (model/initialise.h).
enum class LoraInitialisation : std::uint8_t {
  xavier,  ///< normal, standard deviation sqrt(2 / (in + r))
  kaiming  ///< uniform in +-1 / sqrt(in): PEFT's
};

constexpr std::int64_t largest_adapter_rank = 1 << 20;

/// The members of an adapted module that are the factors of its adapter.
inline constexpr const char *lora_a_weight = "lora_A.weight", *lora_b_weight = "lora_B.weight";

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
  /// By the adapted module, TensorName::module() of its weight: mixer_name(0, "in_proj"), head_name(), and
  /// mixer_name(1, "experts.up_proj") for a stack of experts. The adapter of module M has the tensors
  /// M.lora_A.weight [r, in] and M.lora_B.weight [out, r], of a stack [experts, r, in] and [experts, out, r].
  std::map<TensorName, LoraModule> modules;
  bool f32 = false;  ///< A and B are f32, whatever the dtype of the weights
  LoraInitialisation initialisation = LoraInitialisation::xavier;
  double dropout = 0;  ///< in [0, 1), in training; not in routed experts
  DropoutPosition dropout_position = DropoutPosition::post;
  std::uint64_t dropout_seed = 0;

  bool operator==(const LoraAdapters&) const = default;
};

}  // namespace nemocube
