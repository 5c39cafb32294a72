#pragma once
#include <cstdint>
#include <filesystem>
#include <vector>

#include "core/dtype.h"

namespace nemocube {

struct BenchStepOptions {
  std::filesystem::path config;  ///< directory with config.json
  std::int64_t batch = 4, seq = 512, steps = 6;
  DType dtype = DType::f32;
  bool activation_checkpointing = false;
};

struct BenchStepResult {
  std::vector<double> step_seconds;  ///< every step, the first (cold) one included
  double tokens_per_second = 0;      ///< from the median of the steps after the first
  std::int64_t peak_bytes = 0;       ///< largest resident size of the process so far
  std::int64_t tensor_peak_bytes = 0;
  double gemm_seconds = 0;   ///< in matrix products, mean of the steps after the first
  double flops = 0;          ///< model FLOPs of a step: 3 x forward (model/flops.h)
  double start_seconds = 0;  ///< from entering to the first step: building and filling the model
  double loss_first = 0, loss_last = 0;
};

/// Whole training steps on random tokens: forward, backward, clip, AdamW; one microbatch.
BenchStepResult bench_step(const BenchStepOptions& options);

/// Largest resident size of this process in bytes (VmHWM); 0 where /proc does not say.
std::int64_t process_peak_bytes();

double median(std::vector<double> values);

}  // namespace nemocube
