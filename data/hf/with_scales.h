#pragma once
#include "data/safetensors/reader.h"

namespace nemocube {

/// The tensors of a model's files with the scales of quantized ones taken out of the list and put to their codes
/// (StoredIn::quantized): `X_scale`, `X_scale_inv` and `X_scale_2` go to `X`, which ends in ".weight". Scales of activations
/// and of the KV cache (`input_scale`, `k_scale`, `v_scale`, `k_bias`, `v_bias`) are left out: training has no use for them.
/// A scale beside a tensor of plain numbers, or beside none, stays in the list.
/// errors  Error naming file and tensor for scales that do not fit, and for tensors of schemes that are not read: those of AWQ,
///         GPTQ and compressed-tensors
SafetensorsTensors with_scales(SafetensorsTensors tensors);

}  // namespace nemocube
