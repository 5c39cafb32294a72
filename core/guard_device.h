#pragma once
#include "core/allocator.h"

/// A device for tests. Its kernels are those of the CPU and its memory is the host's, but the pages of that memory
/// can be touched only while a kernel runs (core/kernel.h) or a copy between devices. Host code that uses the memory
/// of a tensor on Device::guard therefore fails here as it would fail with a CUDA device: Tensor::data() throws
/// std::logic_error, and an access through an address ends the process with a message that names the zone of the
/// profile at hand. New memory is full of bytes 0xff, which are NaN as floats.
namespace nemocube::guard {

/// Behind nemocube::allocator().
Allocator& device_allocator();

/// While an object lives, all memory of the device can be touched, by every thread.
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

}  // namespace nemocube::guard
