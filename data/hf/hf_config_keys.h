#pragma once
#include <initializer_list>
#include <optional>
#include <string_view>

#include "data/json/json.h"
#include "model/config.h"

/// The keys of config.json that are fields of NemotronHConfig, with their aliases (data/hf/hf_config.h).
namespace nemocube {

/// The value of a key that may have several names. Error where two of them are present and differ.
std::optional<JsonView> find_any(const JsonView& object, std::initializer_list<const char*> names);

/// Keys that are absent or null leave their fields alone; but num_key_value_heads: null means num_attention_heads.
void read_model_keys(NemotronHConfig& config, const JsonView& object);
/// In a fixed order, each under its first name.
void write_model_keys(const NemotronHConfig& config, Json& to);

/// The keys that may have another value for a block (NemotronHConfig::own_configs): the fields of BlockConfig, but for those of
/// the residual stream.
bool is_block_key(std::string_view name);  ///< or an alias
void read_block_keys(BlockConfig& config, const JsonView& object);
Json block_keys_beside(const BlockConfig& common,
                       const BlockConfig& own);  ///< those of `own` that are others

}  // namespace nemocube
