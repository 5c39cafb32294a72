#pragma once
#include <cstdint>
#include <string>

#include "train/cost/gpu_rates.h"

namespace nemocube {

/// The driver's share of a device's memory for a process that has loaded kernels. An assumption, which no GPU
/// of a node has confirmed yet: reports name 320 MB for a process without libraries (Titan V;
/// github.com/pytorch/pytorch/issues/28394) and about 300 MB with kernels that are loaded when first used, as
/// here (issues/107667); GPUs with more multiprocessors take more.
inline constexpr std::int64_t cuda_context_bytes = 500'000'000;

/// Whether a rank fits on a GPU of a known kind, and by how much.
///
///   left   = memory - context - nccl - reserve
///   spare  = left - needed
struct GpuFit {
  std::int64_t memory = 0;   ///< as the driver reports it (GpuRates::memory_bytes)
  std::int64_t context = 0;  ///< CUDA's context and libraries, and the workspace of cuBLAS
  std::int64_t nccl = 0;     ///< NCCL's buffers; 0 where ranks do not use it
  std::int64_t reserve =
      0;  ///< 2 % of the memory: gaps between tensors, scratch memory of kernels, estimates that are too low
  std::int64_t needed = 0;  ///< tensors of the rank that needs most

  std::int64_t left() const { return memory - context - nccl - reserve; }
  std::int64_t spare() const { return left() - needed; }
  bool fits() const { return spare() >= 0; }
  /// Whether the run fits only if estimates are right and nothing of the reserve is needed.
  bool on_the_edge() const { return !fits() && spare() + reserve >= 0; }
};

GpuFit fit_on(const GpuRates& gpu, std::int64_t tensors, std::int64_t nccl);

/// "it fits, with ... to spare", "it is on the edge: ...", or "it does not fit: ... are missing", and the sum
/// behind that, in GB (10^9 bytes) and GiB (2^30). `gpu` is the name of gpu_rates().
std::string to_string(const GpuFit& fit, const std::string& gpu);

/// "84.9 GB (79.1 GiB)".
std::string both_units(std::int64_t bytes);

}  // namespace nemocube
