#pragma once
#include <functional>
#include <string_view>

#include "data/safetensors/reader.h"

namespace nemocube {

/// The tensors of a model's files. Scales of quantized tensors are taken out of the list and attached to
/// their codes (StoredIn::quantized): `X_scale`, `X_scale_inv` and `X_scale_2` go to `X`, which ends in
/// ".weight". Scales of activations and of the KV cache (`input_scale`, `activation_scale`, `k_scale`,
/// `v_scale`, `k_bias`, `v_bias`) are left out: training has no use for them. Other parts of a model
/// (`is_of_language` is false) have their own names: only scales beside their codes are attached. A scale
/// beside a tensor of plain numbers, or beside no tensor, stays in the list.
/// errors  Error naming file and tensor for scales that do not fit, and for tensors of schemes that are not
///         read: AWQ, GPTQ and compressed-tensors
SafetensorsTensors with_scales(
    SafetensorsTensors tensors,
    const std::function<bool(std::string_view)>& is_of_language = [](std::string_view) { return true; });

}  // namespace nemocube
