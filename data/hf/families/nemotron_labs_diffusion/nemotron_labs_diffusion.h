#pragma once
#include "data/hf/families/family.h"

namespace nemocube {

/// Nemotron-Labs-Diffusion (`nemotron_labs_diffusion`, NemotronLabsDiffusionModel): the layers of Ministral 3
/// (data/hf/families/mistral/ministral3.h) under `encoder`, with the head `diffusion_head`, and trained to
/// denoise (docs/block_diffusion.md).
///
/// config.json: the keys of Ministral 3; `mask_token_id` (100) and `block_size` (32) besides. `dlm_paradigm`
/// says how the model was used last, and is not read: a recipe says how it is trained (model.dlm_paradigm),
/// and all else here is autoregressive.
/// Source: NVIDIA's modeling_nemotron_labs_diffusion.py; Megatron-Bridge, conversion of the same models.
extern const Family nemotron_labs_diffusion_family;

}  // namespace nemocube
