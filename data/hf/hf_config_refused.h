#pragma once
#include <optional>
#include <string>

#include "data/json/json.h"

namespace nemocube {

/// Throws Error naming the key, what it means and what to do, unless config.json describes a NemotronH
/// language model whose weights can be read. Refused are
///   - other architectures,
///   - NemotronHPuzzle (`block_configs`),
///   - quantized weights other than FP8 and NVFP4 (data/hf/quantization_config.h),
///   - models of several parts (`llm_config`, `text_config`, `vision_config` and the like): language_part() is none.
/// A key that is empty, or that only repeats the rest of the config, is accepted.
void refuse_other_models(const JsonView& config);

/// The member, unless it is absent, null, {} or [].
std::optional<JsonView> find_filled(const JsonView& object, const char* key);
/// Whether `value` differs from the member `key` of `config`. A member that `config` lacks counts as null.
bool differs(const std::string& key, const Json& value, const Json& config);
/// The first member of `part` that differs from `config`.
std::optional<std::string> first_difference(const Json& part, const Json& config);

}  // namespace nemocube
