#pragma once
#include "data/json/json.h"

namespace nemocube {

/// Throws Error naming the key, what it means and what to do, unless config.json describes a NemotronH
/// language model whose blocks of one kind are all alike and whose weights can be read. Refused are
///   - other architectures,
///   - NemotronHPuzzle (`block_configs`) and other models with sizes for each block (`per_layer_config`),
///   - quantized weights other than FP8 and NVFP4 (data/hf/quantization_config.h),
///   - models of several parts (`llm_config`, `text_config`, `vision_config` and the like): language_part() is none.
/// A key that is empty, or that only repeats the rest of the config, is accepted.
void refuse_other_models(const JsonView& config);

}  // namespace nemocube
