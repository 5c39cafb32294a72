#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nemocube {

/// Counters of tools/cuda_emulator for one kernel, over all of its launches.
struct KernelCount {
  std::string name = {};  ///< as C++ writes it, with namespaces, template arguments and parameters
  std::int64_t launches = 0;
  std::int64_t blocks = 0;             ///< of all launches together
  std::int64_t resident_blocks = 0;    ///< that a multiprocessor holds at once, at the last launch
  std::int64_t dram_bytes = 0;         ///< between a modelled L2 and memory
  std::int64_t global_bytes = 0;       ///< asked for by the threads
  std::int64_t sectors = 0;            ///< of 32 bytes that the requests touched
  std::int64_t wavefronts = 0;         ///< of shared memory
  std::int64_t ideal_wavefronts = 0;   ///< without bank conflicts
  std::int64_t warp_instructions = 0;  ///< instructions of PTX, not of the machine code
  std::int64_t multiply_adds = 0;      ///< of threads: f32, and f64 or integers where a kernel has any
  std::int64_t mma_multiply_adds = 0;  ///< on tensor cores
  /// Both absent where the emulator finds no ptxas, which allots registers.
  std::optional<std::int64_t> spill_bytes = {}, registers = {};  ///< of a thread
  double occupancy = 1;  ///< warps of a multiprocessor over the most it can have, at the last launch
};

/// Counters between cudaProfilerStart and cudaProfilerStop, for all kernels together.
struct KernelCounters {
  std::int64_t launches = 0;
  std::int64_t dram_bytes = 0;      ///< between a modelled L2 and memory
  std::int64_t global_bytes = 0;    ///< asked for by the threads
  std::int64_t sectors = 0;         ///< of 32 bytes that the requests touched
  std::int64_t bank_conflicts = 0;  ///< wavefronts of shared memory beyond the ideal
  /// Both absent where the emulator finds no ptxas, which allots registers.
  std::optional<std::int64_t> spill_bytes = 0;  ///< of a thread, the sum over kernels
  std::optional<std::int64_t> registers = 0;    ///< of a thread, the largest of the kernels
  double occupancy = 1;  ///< warps of a multiprocessor over the most it can have, the least of the kernels
  std::vector<KernelCount> kernels;  ///< each alone, in the order of their names
};

/// The file that the emulator writes its counters to: environment variable CUDA_EMULATOR_COUNTERS; absent on
/// a device.
std::optional<std::filesystem::path> kernel_counters_file();

/// Reads the emulator's JSON. Throws Error naming the file when it has another form.
KernelCounters read_kernel_counters(const std::filesystem::path& file);
/// The same for text; `name` stands for the file in messages.
KernelCounters parse_kernel_counters(std::string_view text, const std::string& name);

}  // namespace nemocube
