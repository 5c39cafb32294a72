#pragma once
#include <cstddef>

#include "runtime/registration.h"

namespace emulator {

/// Blocks of `threads` threads that one multiprocessor holds at a time; 0 when not even one fits. Throws ApiError.
int active_blocks(const RegisteredKernel& registered, const Kernel& kernel, int threads,
                  std::size_t dynamic_shared);

}  // namespace emulator
