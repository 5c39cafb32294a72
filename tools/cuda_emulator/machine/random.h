#pragma once
#include <cstdint>

namespace emulator {

/// SplitMix64 (Steele, Lea, Flood, 2014): the next of a sequence of 64-bit numbers; any state is a good seed.
inline std::uint64_t next_random(std::uint64_t& state) {
  state += 0x9e37'79b9'7f4a'7c15;
  std::uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58'476d'1ce4'e5b9;
  z = (z ^ (z >> 27)) * 0x94d0'49bb'1331'11eb;
  return z ^ (z >> 31);
}

}  // namespace emulator
