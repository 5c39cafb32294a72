#pragma once
#include "data/hf/families/family.h"

namespace nemocube {

/// Baichuan and Baichuan 2 (`baichuan`, BaichuanForCausalLM and BaiChuanForCausalLM: 7B, 13B): layers as
/// Llama's (data/hf/families/decoder_layers.h) whose queries, keys and values are one weight W_pack.
///
/// config.json: the keys of the authors' BaichuanConfig, whose defaults count where a key is absent. No key
/// names the variant:
///   max_position_embeddings is present (7B)    rotary embedding of theta 10000; else (13B) ALiBi, and
///                                              model_max_length positions
///   z_loss_weight is present (Baichuan 2)      the rows of the head are divided by their lengths (NormHead),
///                                              which the authors' code does to the stored weight itself at
///                                              the first evaluation; the weight stays as it is here. The
///                                              value is the weight of the z loss, which is over labelled
///                                              rows here, over all rows in the authors' code
/// Refused: tie_word_embeddings with a NormHead.
extern const Family baichuan_family;

}  // namespace nemocube
