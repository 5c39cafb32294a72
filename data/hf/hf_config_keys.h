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

/// Whether a block may have its own value for the key of this name or alias (NemotronHConfig::own_configs): the fields of
/// BlockConfig except hidden_size and layer_norm_epsilon.
bool is_block_key(std::string_view name);
/// Reads these keys from the object of one block. Keys that are absent or null leave their fields alone. Throws Error naming
/// the place, wish and value.
void read_block_keys(BlockConfig& config, const JsonView& object);
/// The keys in which `own` differs from `common`, with the values of `own`, each under its first name.
Json differing_block_keys(const BlockConfig& common, const BlockConfig& own);

}  // namespace nemocube
