#pragma once
#include "data/hf/families/family.h"

namespace nemocube {

/// Falcon-H1 (`falcon_h1`, FalconH1ForCausalLM): a layer is a Mamba-2 mixer and an attention on one norm,
/// whose outputs are added, and a gated MLP behind a norm of its own. Numbers of the config ("multipliers")
/// are on the way of everything: they are no weights, and apply where Hugging Face's class applies them.
///
/// config.json: the keys of FalconH1Config, whose defaults count where a key is absent.
///
/// mixer        mamba_d_ssm channels (null: mamba_expand x hidden_size) in mamba_n_heads heads of
///              mamba_d_head ("auto": what divides the channels), mamba_proj_bias on in_proj,
///              projectors_bias on out_proj
/// norm         mamba_rms_norm with mamba_norm_before_gate; without, the gate alone
/// head_dim     is no key of the class, but counts where it is there
/// multipliers  embedding, lm_head, key, attention_in, attention_out, ssm_in, ssm_out; lists of two
///              (mlp_multipliers: gate, output) and five (ssm_multipliers: z, x, B, C, dt)
/// no effect    mamba_use_mlp, attn_layer_indices and attention_dropout, as in Hugging Face's class: a
///              warning; num_logits_to_keep
///
/// The rotary embedding: data/hf/rope_keys.h. Fresh weights begin as in the class: MambaStart::plain.
extern const Family falcon_h1_family;

}  // namespace nemocube
