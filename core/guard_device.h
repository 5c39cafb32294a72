#pragma once
#include "core/allocator.h"

/// A device for tests. Its kernels are those of the CPU and its memory is the host's, but nobody can touch
/// that memory at the addresses of its tensors. While a kernel runs (core/kernel.h) or a copy between
/// devices, Tensor::address() gives others, at which the same memory can be touched. Host code that uses the
/// memory of a tensor on Device::guard therefore fails here as it would fail with a CUDA device:
/// Tensor::data() throws std::logic_error, and an access through an address ends the process with a message
/// that names the zone of the profile at hand. New memory is full of bytes 0xff, which are NaN as floats.
namespace nemocube::guard {

/// Behind nemocube::allocator().
Allocator& device_allocator();

/// While an object lives, Tensor::address() gives addresses at which the memory can be touched, in every
/// thread.
class Opened {
 public:
  Opened();
  ~Opened();
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
};

/// Whether an Opened lives; whether this thread made one that does. Threads of a kernel see the first alone.
bool is_open();
bool is_opened_here();

/// Where the memory at an address of a tensor can be touched.
std::byte* opened_address(const void* address);

}  // namespace nemocube::guard
