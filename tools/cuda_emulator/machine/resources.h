#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace emulator {

struct Kernel;

/// What a kernel needs on the hardware, as ptxas says.
struct KernelResources {
  bool known = false;  ///< false: no ptxas was found, or it refused the text; registers is then an assumption
  std::uint32_t registers = 32;  ///< a thread
  std::uint32_t spill_store_bytes = 0, spill_load_bytes = 0, stack_bytes = 0;
};

/// Runs `ptxas -arch=sm_90 -v` on the kernel, when it is first asked. ptxas is looked for in PATH, in $CUDA_PATH/bin
/// and in /usr/local/cuda/bin. Thread-safe.
const KernelResources& resources_of(const Kernel& kernel);

/// The PTX text of a unit without the kernels (.entry) of other names. Functions, variables and directives stay.
std::string without_other_entries(std::string_view text, std::string_view kernel);

/// Blocks of a kernel that run at one time.
struct Residency {
  std::uint64_t blocks = 0;
  std::string limit;  ///< what keeps more from running: "64 registers a thread", "1024 threads a block" ...
};

/// Blocks that one SM of compute capability 9.0 holds at once: by warps (64), blocks (32), registers (64 Ki, in units of 256 a warp, in four
/// parts) and shared memory (228 KiB with the block's reserved 1 KiB, in units of 128 bytes). Source: cuda_occupancy.h.
Residency blocks_per_multiprocessor(std::uint32_t threads, std::uint32_t registers,
                                    std::uint64_t shared_bytes);
/// The same for the launch's kernel and shape and all multiprocessors of a device: at least one block for each.
Residency residency_of(const class Launch& launch, std::uint32_t registers);

}  // namespace emulator
