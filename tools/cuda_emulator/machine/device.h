#pragma once
#include <cstddef>
#include <cstdint>

/// The virtual devices: H100 SXM5 cards (H: white paper figures; compute capability 9.0).
namespace emulator::h100 {

constexpr int multiprocessors = 132;
constexpr std::uint32_t threads_per_block = 1024;
constexpr int threads_per_multiprocessor = 2048;
constexpr int blocks_per_multiprocessor = 32;
constexpr std::uint32_t registers_per_block = 65536;
constexpr std::size_t shared_per_block = 49152;
constexpr std::size_t shared_per_block_optin = 232448;
constexpr std::size_t shared_per_multiprocessor = 233472;
constexpr std::size_t reserved_shared_per_block = 1024;
constexpr int l2_bytes = 52428800;
constexpr std::size_t access_window_bytes = 128 << 20;
constexpr int clock_khz = 1980000, memory_clock_khz = 2619000;

}  // namespace emulator::h100
