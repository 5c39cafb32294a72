#pragma once
#include <cstdint>
#include <vector>

#include "data/json/json.h"
#include "model/config.h"

/// `per_layer_config` of config.json: the keys in which blocks of a pruned model differ from the rest of the
/// config.
///
///     "per_layer_config": {"03": {"num_experts_per_tok": 4, "moe_intermediate_size": 1280}, "07": ...}
///
/// or a list with an object or null for each block, as some programs write. A block may have any key of
/// is_block_key() (data/hf/config_keys.h): all sizes of its mixer. `null` is accepted in two cases: for a key
/// that is absent or null in the whole config, and for moe_latent_size, where it means no latent width.
/// Blocks of multi-token prediction have the sizes of the whole config. Source: transformers 5.23,
/// integrations/heterogeneity, which reads and writes the object.
namespace nemocube {

/// A member of such an object, or of a list: the keys of one layer or block.
struct LayerKeys {
  std::int64_t number;
  JsonView keys;
};
/// The members but for those with null, in the order of the file; none where `key` is absent or null. Throws
/// Error for a key that is no number, and for a member that is no object.
std::vector<LayerKeys> layer_keys(const JsonView& object, const char* key);

/// Fills ModelConfig::own_configs. pre: the rest of `config` has been read from `object`. Throws Error naming
/// place, wanted and given value: for a difference in a block that the model does not have, for a difference
/// under a key that is no is_block_key() (hidden_size, skip), for two entries of one block that both differ,
/// and for a difference in `mtp_per_layer_config`.
void read_per_layer_config(ModelConfig& config, const JsonView& object);

/// Sets the key in the form that transformers writes, if blocks differ.
void write_per_layer_config(const ModelConfig& config, Json& to);

}  // namespace nemocube
