#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "data/json/json.h"
#include "model/config.h"

/// Hugging Face's config.json for NemotronH, in every spelling found in published checkpoints.
///
/// layers      `layers_block_type` or `layer_types` (a list of mamba/linear_attention/M,
///             attention/full_attention/ *, mlp/-, moe/E) wins over `hybrid_override_pattern` (a string of
///             M * - E, see parse_pattern, or a list)
/// prediction  `mtp_layers_block_type` wins over `mtp_hybrid_override_pattern` unless the list is the
///             default, attention + moe; the pattern may also follow the layers' pattern after a '/'
/// aliases     mamba_n_groups, mamba_num_groups, mamba_state_dim, mamba_d_conv, mamba_chunk_size,
///             attention_head_dim, kv_channels, norm_eps, rms_norm_eps, num_query_groups, mamba_conv_bias,
///             mamba_dt_min, mamba_dt_max, mamba_dt_init_floor, mamba_dt_limit, num_local_experts,
///             torch_dtype; a key and its alias may both be present if they agree
/// integers    a list of equal numbers, one for each block, counts as that number
/// infinity    the bare token Infinity, {"__float__": "Infinity"}, or any number of at least 1e30
/// blocks      may have sizes of their own: `per_layer_config` (data/hf/per_layer_config.h)
/// parts       of a model of several parts the config of its language model is read (data/hf/language_part.h)
/// refused     other architectures and configs that would be misread, see refuse_other_models
///
/// Absent keys have the defaults of NemotronHConfig. null counts as absent (num_key_value_heads: null means
/// num_attention_heads). Keys that do not shape the model are not read. A warning names keys that seem to
/// shape the model but have no effect, here as in Hugging Face's class: attention_dropout, hidden_dropout,
/// attention_bias, sliding_window, n_shared_experts (each MoE block has one shared expert).
namespace nemocube {

/// A config and the text it came from, so that a fine-tuned model can be saved with the same text.
struct HfConfigFile {
  NemotronHConfig config;
  std::string text;
};

/// Reads `path`, or config.json in it when it is a directory. The config is valid. Throws Error naming
/// the file, the key, the accepted values and the given value.
HfConfigFile read_hf_config_file(const std::filesystem::path& path);
NemotronHConfig read_hf_config(const std::filesystem::path& path);
/// The same for an object inside another document.
NemotronHConfig parse_hf_config(const JsonView& object);

/// config.json for a model that did not come from a file.
HfConfigFile make_hf_config(const NemotronHConfig& config);
/// The text of a config.json with its dtype replaced, under the key that the text has (`torch_dtype` if it
/// has none). Returns the text unchanged when it already has this dtype.
std::string with_dtype(const std::string& text, DType dtype);
/// Writes config.json (or the file that `path` names) atomically: file.text byte for byte, or with_dtype()
/// when `dtype` is given.
void write_hf_config(const std::filesystem::path& path, const HfConfigFile& file,
                     std::optional<DType> dtype = std::nullopt);

/// Ids that end a generated text: those of generation_config.json in `directory` when it has any, otherwise
/// those of the config.
std::vector<std::int64_t> end_of_text_ids(const std::filesystem::path& directory,
                                          const NemotronHConfig& config);
/// The text of a generation_config.json with these ids as those that end a generated text; "" is a file that is not there yet, which
/// gets the config's other ids, too.
std::string with_end_of_text_ids(const std::string& text, const NemotronHConfig& config,
                                 const std::vector<std::int64_t>& ids);

}  // namespace nemocube
