#pragma once
#include "data/hf/families/family.h"

namespace nemocube {

/// Ministral 3 (`ministral3`, Ministral3ForCausalLM): layers as Llama's (data/hf/families/decoder_layers.h)
/// without biases, whose queries grow with their position (PositionScale).
///
/// config.json: the keys of Hugging Face's Ministral3Config, whose defaults count where a key is absent,
/// those of a whole absent `rope_parameters` included. The scale of queries is `llama_4_scaling_beta` and
/// `original_max_position_embeddings` of the rotary embedding; without the former there is none.
/// `sliding_window` is of all layers. See mistral.h for Mistral3ForConditionalGeneration.
extern const Family ministral3_family;

/// The parts of families whose layers are those of Ministral 3.
namespace ministral3 {
/// `layers` get the names of `names`.
void read(ModelConfig& config, const JsonView& object, const NameTable& names);
void write(const ModelConfig& config, const char* architecture, std::string_view model_type, Json& to);
}  // namespace ministral3

}  // namespace nemocube
