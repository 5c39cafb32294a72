#pragma once
#include <cstdint>
#include <string>

/// How fast GPUs and the links between them are, for estimates.
namespace nemocube {

/// Peak rates; by default of an H100 SXM. docs/kernels.md says where each rate comes from.
struct GpuRates {
  double dram_bytes = 3.35e12, l2_bytes = 5.5e12;  ///< a second
  double tensor_flops = 989e12, single_flops = 67e12;
  double multiprocessors = 132, clock = 1.755e9;
  double warp_instructions = 4;  ///< a clock and multiprocessor; of wavefronts of 128 bytes there is 1
  /// The memory of the device as its driver reports it, which is less than the size in the name: 79.1 GiB of
  /// an H100 of 80 GB (github.com/vllm-project/vllm, issue 27508), 139 GiB of the H200 of docs/measured.md.
  std::int64_t memory_bytes = 791 * (std::int64_t{1} << 30) / 10;
};

/// "h100" or "h100-80" (SXM, 80 GB), "h200" or "h200-141", which is the same but for its memory (141 GB, 4.8
/// TB/s: NVIDIA, H200 datasheet). Error for other names.
GpuRates gpu_rates(const std::string& name);

/// Links of machines of 8 GPUs, a direction and GPU: NVLink 4 has 450 GB/s, of which
/// collectives reach about 0.8 (nccl-tests); the network has an interface of 400 Gbit/s for
/// each GPU. Latencies are of small collectives.
struct LinkRates {
  std::int64_t gpus_of_node = 8;
  double node_bytes = 360e9, network_bytes = 45e9;       ///< a second
  double node_latency = 10e-6, network_latency = 25e-6;  ///< seconds of a call, whatever its bytes
};

/// Shares of a GPU's peak rates that compiled kernels have reached: on an H200, in bf16, at the sizes of
/// Nemotron 3 Nano and 8,192 tokens (docs/measured.md). The scan's shares are from before the scan worked on
/// several segments of a sequence at the same time.
struct ReachedShares {
  double products = 0.75;  ///< of tensor_flops, as all but memory: cuBLAS
  double experts = 0.45;   ///< grouped_linear
  double attention_forward = 0.35, attention_backward = 0.235;
  double scan_forward = 0.028, scan_backward = 0.027;
  double memory = 0.62;     ///< of dram_bytes: norms, convolution, routing, activations, loss
  double optimizer = 0.85;  ///< of dram_bytes
};

}  // namespace nemocube
