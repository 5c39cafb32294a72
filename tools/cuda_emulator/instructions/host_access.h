#pragma once
#include <emmintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

/// Movement of values between registers and memory that other host threads may use at the same time: indivisible and
/// in relaxed order, as the memory model of PTX wants (PTX ISA 8.2).
namespace emulator {

template <class T>
T load_relaxed(const std::byte* from) {
  T value;
  __atomic_load(reinterpret_cast<const T*>(from), &value, __ATOMIC_RELAXED);
  return value;
}
template <class T>
void store_relaxed(std::byte* to, T value) {
  __atomic_store(reinterpret_cast<T*>(to), &value, __ATOMIC_RELAXED);
}

// An aligned move of 16 bytes is indivisible on processors with AVX. ThreadSanitizer does not know that.
#if defined(__SANITIZE_THREAD__)
#define EMULATOR_VECTOR_MOVE __attribute__((noinline, no_sanitize("thread")))
#else
#define EMULATOR_VECTOR_MOVE
#endif
EMULATOR_VECTOR_MOVE inline void load_16(const std::byte* from, void* to) {
  _mm_storeu_si128(static_cast<__m128i*>(to), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
EMULATOR_VECTOR_MOVE inline void store_16(std::byte* to, const void* from) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_loadu_si128(static_cast<const __m128i*>(from)));
}
#undef EMULATOR_VECTOR_MOVE

/// Moves 1, 2, 4, 8, 16 or 32 bytes, aligned to their number (32 bytes: two moves of 16).
inline void read_bytes(const std::byte* from, void* to, std::uint32_t bytes) {
  const auto as = [&]<class T>(T) {
    const T value = load_relaxed<T>(from);
    std::memcpy(to, &value, sizeof value);
  };
  switch (bytes) {
    case 1:
      return as(std::uint8_t{});
    case 2:
      return as(std::uint16_t{});
    case 4:
      return as(std::uint32_t{});
    case 8:
      return as(std::uint64_t{});
    default:
      for (std::uint32_t at = 0; at < bytes; at += 16) load_16(from + at, static_cast<std::byte*>(to) + at);
  }
}
inline void write_bytes(std::byte* to, const void* from, std::uint32_t bytes) {
  const auto as = [&]<class T>(T value) {
    std::memcpy(&value, from, sizeof value);
    store_relaxed(to, value);
  };
  switch (bytes) {
    case 1:
      return as(std::uint8_t{});
    case 2:
      return as(std::uint16_t{});
    case 4:
      return as(std::uint32_t{});
    case 8:
      return as(std::uint64_t{});
    default:
      for (std::uint32_t at = 0; at < bytes; at += 16)
        store_16(to + at, static_cast<const std::byte*>(from) + at);
  }
}

}  // namespace emulator
