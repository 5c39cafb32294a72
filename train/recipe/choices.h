#pragma once

/// Choices that keys of a recipe offer and that the rooms behind the recipe act on.
namespace nemocube {

/// Where a command computes: option --device, key `device` of a recipe.
enum class DeviceChoice {
  cpu,
  cuda,
  automatic,  ///< cuda if there is a device and every operation of the command has CUDA kernels, else cpu
};

/// Key `optimizer._target_`.
enum class OptimizerKind { adamw, adam, sgd };

}  // namespace nemocube
