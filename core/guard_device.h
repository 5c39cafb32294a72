#pragma once
#include "core/allocator.h"

/// A device for tests. Its kernels are the CPU's and its memory is the host's, but any access at the address
/// of a tensor fails. While a kernel (core/kernel.h) or a copy between devices runs, Tensor::address() gives
/// other addresses, at which the same memory can be used. Host code that uses the memory of a tensor on
/// Device::guard therefore fails here as it would fail with a CUDA device: Tensor::data() throws
/// std::logic_error, and an access through an address ends the process with a message that names the current
/// zone of the profile. New memory is full of bytes 0xff, which are NaN as floats.
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

/// Whether an Opened of any thread lives, and whether one of this thread. A kernel's threads have none.
bool is_open();
bool is_opened_here();

/// Where the memory at an address of a tensor can be touched.
std::byte* opened_address(const void* address);

}  // namespace nemocube::guard
