#pragma once
#include "core/allocator.h"

/// A device that computes nothing: its tensors have addresses and no memory, its kernels and copies
/// do nothing, and values read from it are 0. Its allocator counts the bytes that tensors hold. A
/// training step that runs on Device::planned in milliseconds therefore says how much memory the
/// same step needs on a CUDA device, before one is used (train/cost/planned_step.h). Operations
/// treat this device as they treat a CUDA device.
namespace nemocube::planned {

/// Behind nemocube::allocator().
Allocator& device_allocator();

}  // namespace nemocube::planned
