#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "data/hf/hf_weights.h"
#include "data/json/atomic_file.h"
#include "model/lora.h"

namespace nemocube {

/// How adapters of stacked experts are written.
enum class ExpertForm : std::uint8_t {
  stacked,            ///< as PEFT from 0.19 on reads them (target_parameters)
  stacked_peft_0_18,  ///< as PEFT 0.18 and AutoModel read them
  per_expert  ///< a pair of matrices for each expert, as AutoModel's v4_compatible: true; not readable by PEFT
};

struct PeftWriteOptions {
  std::optional<std::string> base_model_name_or_path;
  std::optional<std::string> revision = {};  ///< of the base on the Hub
  ExpertForm experts = ExpertForm::stacked;
  ModelNames names = {};  ///< of the model
  /// Further files: contents by name, such as automodel_peft_config.json and tokenizer.json.
  std::map<std::string, std::string> other_files = {};
};

/// Writes an adapter as PEFT does: adapter_config.json, adapter_model.safetensors, other files. `tensors` are
/// all A and B of `adapters`, whole, in host memory, by the texts of their names, in the dtypes to be
/// written. The same arguments give the same bytes. Returns the sum of each file, by file name.
///
/// adapter_config.json is a whole LoraConfig of PEFT. `r` and `lora_alpha` are the values of most modules;
/// rank_pattern and alpha_pattern name the others. lora_dropout is 0 where PEFT cannot apply the dropout:
/// after the branch, or with stacks.
///
/// Crash-safe like save_hf_weights(): the directory must be absent or empty, and appears as a whole.
/// std::logic_error where tensors are missing, foreign or of shapes that contradict `adapters`.
///
/// The ranks of `group` call together, with the same arguments; rank 0 writes its tensors; other ranks may
/// pass meta tensors. All ranks return the same sums, and where rank 0 fails, all throw.
FileSums write_peft_directory(const std::filesystem::path& directory, std::span<const NamedTensor> tensors,
                              const LoraAdapters& adapters, const PeftWriteOptions& options = {},
                              Communicator* group = nullptr);

}  // namespace nemocube
