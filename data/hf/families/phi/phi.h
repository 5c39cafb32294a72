#pragma once
#include "data/hf/families/family.h"

namespace nemocube {

/// Phi (`phi`, PhiForCausalLM: phi-1, 1.5, 2): attention and MLP work on one LayerNorm, the MLP has a GELU
/// and no gate, everything has a bias, the head too, and a rotary embedding turns a part of each head's
/// channels.
///
/// config.json: the keys of Hugging Face's PhiConfig, whose defaults count where a key is absent.
/// `partial_rotary_factor` is 0.5 where absent. With `qk_layernorm` each head's queries and keys have a
/// LayerNorm. The rotary embedding: data/hf/rope_keys.h. `resid_pdrop`, `embd_pdrop` and `attention_dropout`
/// have no effect: a warning.
extern const Family phi_family;

}  // namespace nemocube
