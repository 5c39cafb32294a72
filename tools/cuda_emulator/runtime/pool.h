#pragma once

namespace emulator {

struct Allocation;

/// cudaFree of stream-ordered memory: takes it out of its pool's books.
void forget_pooled(const Allocation& allocation);

}  // namespace emulator
