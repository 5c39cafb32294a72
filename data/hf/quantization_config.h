#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "data/json/json.h"
#include "data/safetensors/reader.h"

/// The declarations of quantized weights in a model's files. A tensor is read by its dtype and
/// scales (data/hf/with_scales.h), not by declarations: these say which files must not be
/// read, and are compared with the tensors.
///     config.json             `quantization_config` {quant_method: "modelopt", quant_algo, config_groups} or
///                             {quant_method: "fp8", weight_block_size: [128, 128]}
///     hf_quant_config.json    `quantization` {quant_algo, quantized_layers}: older exports of ModelOpt have
///                             this file alone
namespace nemocube {

struct DeclaredQuantization {
  std::string place;                ///< for messages: "config.json: 'quantization_config'"
  bool fp8 = false, nvfp4 = false;  ///< which kinds of weights there may be
};

/// The declaration of a config.json; nothing without one. Error naming the key and
/// the scheme for schemes that are not read.
std::optional<DeclaredQuantization> declared_quantization(const JsonView& config);

/// Compares all tensors of a directory with what its files declare. Quantized
/// tensors without a declaration are accepted.
void check_declared_quantization(const std::filesystem::path& directory, const SafetensorsTensors& tensors);

/// The text of a config.json for plain weights: without
/// quantization_config. Unchanged where it has no such key.
std::string without_quantization(const std::string& text);

}  // namespace nemocube
