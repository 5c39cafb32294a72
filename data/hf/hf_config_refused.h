#pragma once
#include <optional>
#include <string>

#include "data/hf/families/family.h"
#include "data/json/json.h"

namespace nemocube {

/// The family of a language model whose weights can be read. Throws Error
/// naming the key, its meaning and a remedy for
///   - models of no family, and models that only look like a family's (Family::refuse_relatives),
///   - quantized weights other than FP8 and NVFP4 (data/hf/quantization_config.h),
///   - models of several parts (`llm_config`, `text_config`, `vision_config` and the like): language_part()
///     is none.
/// A key that is empty, or that only repeats the rest of the config, is accepted.
const Family& family_of_language_model(const JsonView& config);

/// The member, unless it is absent, null, {} or [].
std::optional<JsonView> find_filled(const JsonView& object, const char* key);
/// Whether `value` differs from the member `key` of `config`. A member that `config` lacks counts as null.
bool differs(const std::string& key, const Json& value, const Json& config);
/// The first member of `part` that differs from `config`.
std::optional<std::string> first_difference(const Json& part, const Json& config);

}  // namespace nemocube
