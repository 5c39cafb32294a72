#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/device.h"
#include "train/recipe/choices.h"

namespace nemocube {

/// "cpu", "cuda" or "auto"; Error naming --device for another text.
DeviceChoice parse_device(const std::string& text);

/// The device for a command that needs `operations` (folders of ops/). `asked` stands for the option or key
/// in messages: "--device cuda". For `automatic` a message names the choice, and the reason against cuda.
/// CUDA libraries are loaded unless `cpu` is asked for. Of several CUDA devices the result is the first:
/// device_of_rank() chooses among them.
/// errors  Error for `cuda` where the build has no CUDA backend, where some of the operations have no CUDA
///         kernels (the text names them), or where no device can be used
Device choose_device(DeviceChoice choice, std::span<const std::string_view> operations,
                     std::string_view asked);

/// The operations of a model: all that have kernels, without the optimizers; and with the optimizer of this
/// name (operation_of).
std::vector<std::string_view> model_operations();
std::vector<std::string_view> training_operations(std::string_view optimizer);

}  // namespace nemocube
