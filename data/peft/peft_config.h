#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/peft/peft_pattern.h"
#include "model/lora.h"

namespace nemocube {

/// The files of an adapter's directory: PEFT's two, and NeMo AutoModel's settings beside them.
constexpr const char* peft_config_name = "adapter_config.json";
constexpr const char* peft_tensors_name = "adapter_model.safetensors";
constexpr const char* automodel_config_name = "automodel_peft_config.json";

/// How the matrices of a stack of experts [experts, out, in] lie in a file. B's last index is the expert in
/// the first two.
enum class StackLayout : std::uint8_t {
  current,  ///< PEFT from 0.19 on: A [experts r, in], B [out, r experts]
  peft_0_18,  ///< PEFT 0.18, and AutoModel: A [experts r, out], B [in, r experts], so that a weight gets s (B A) transposed
  each  ///< under the name of the stack itself: A [experts, r, in], B [experts, out, r]
};

/// The fields that matter of an adapter_config.json, and of an automodel_peft_config.json beside it.
struct PeftConfig {
  std::int64_t rank = 8;
  double alpha = 8;
  PatternValues<std::int64_t> rank_pattern;
  PatternValues<double> alpha_pattern;
  bool rank_stabilised = false;
  double dropout = 0;
  DropoutPosition dropout_position = DropoutPosition::pre;
  LoraInitialisation initialisation = LoraInitialisation::kaiming;
  bool moe_rank_scaling =
      false;  ///< AutoModel's: experts have rank / num_experts_per_tok, which `rank` does not say
  std::optional<std::string> base_model_name_or_path;
  std::vector<std::string> target_modules;  ///< where the file has a list, and nothing is excluded
  std::vector<std::string> target_parameters;
  std::vector<std::string> modules_to_save;
  std::optional<StackLayout>
      layout;  ///< by peft_version; without one, AutoModel's where the file is AutoModel's

  /// `path`: of a module, as the file with the tensors spells it.
  std::int64_t rank_of(std::string_view path) const { return rank_pattern.value_of(path, rank); }
  double alpha_of(std::string_view path) const { return alpha_pattern.value_of(path, alpha); }
};

/// Reads both files of a directory. Throws Error naming file, key, wanted and given value where a value is of
/// another type or out of range, and where a field asks for a thing that LoraAdapters cannot express
/// (docs/adapters.md has the list). An unknown field counts as such a one, unless it is null, false or empty.
PeftConfig read_peft_config(const std::filesystem::path& directory);

}  // namespace nemocube
