#pragma once
#include "data/json/json.h"

namespace nemocube {

/// Throws Error naming the key, what it means and what to do, unless config.json describes a NemotronH
/// language model whose blocks of one kind are all alike and whose weights are plain numbers. Refused are
///   - other architectures,
///   - NemotronHPuzzle (`block_configs`) and other models with sizes for each block (`per_layer_config`),
///   - quantized weights (`quantization_config`, `compression_config`),
///   - models of several parts (`llm_config`, `text_config`, `vision_config` and the like).
/// A key that is empty, or that only repeats the rest of the config, is accepted.
void refuse_other_models(const JsonView& config);

}  // namespace nemocube
