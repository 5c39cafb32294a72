#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "data/peft/peft_config.h"
#include "data/peft/stored_adapters.h"
#include "data/safetensors/reader.h"
#include "model/lora.h"

namespace nemocube {

/// A directory with a LoRA adapter, as Hugging Face PEFT and NeMo AutoModel write them
/// (docs/adapters.md): adapter_config.json, adapter_model.safetensors, and AutoModel's
/// automodel_peft_config.json. Opening reads the configs and the header of the tensors; tensor() reads
/// values. Many threads may call const members at once.
class PeftDirectory {
 public:
  /// Throws Error naming file and key where the files are damaged, ask for things that LoraAdapters cannot
  /// express (read_peft_config()), or do not fit the model (find_adapters()).
  PeftDirectory(const std::filesystem::path& directory, const ModelSetup& setup);

  /// `f32` is true unless all tensors are BF16. The dropout is AutoModel's where its file has one, else
  /// PEFT's lora_dropout.
  const LoraAdapters& adapters() const { return adapters_; }
  const std::optional<std::string>& base_model_name_or_path() const { return base_model_; }
  const LoraModule* find(
      std::string_view module) const;  ///< by the text of its name; null for a module without adapter
  /// By text: lora_A.weight and lora_B.weight of each module, by module.
  std::vector<std::string> tensor_names() const;
  /// The value of a tensor: [r, in] or [out, r], of a stack of experts [experts, r, in] or [experts, out, r];
  /// in host memory, in the dtype of the file (F16 becomes f32). Error where the file cannot be read,
  /// std::logic_error for other names.
  Tensor tensor(std::string_view name) const;

 private:
  std::shared_ptr<const SafetensorsFile> file_;
  StoredAdapters stored_;
  LoraAdapters adapters_;
  std::optional<std::string> base_model_;
};

}  // namespace nemocube
