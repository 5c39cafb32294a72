#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "core/profile.h"
#include "parallel/comm/world.h"
#include "train/cost/step_timeline.h"
#include "train/recipe/environment.h"

namespace nemocube {

struct BenchStepOptions {
  std::filesystem::path config;  ///< directory with config.json
  std::int64_t batch = 4, seq = 512, steps = 6;
  DType dtype = DType::f32;
  Device device;  ///< of this rank
  bool activation_checkpointing = false;
  bool cuda_graphs = false;        ///< StepReplay
  std::int64_t microbatches = 1;   ///< of a step, on each replica
  DistributedSection distributed;  ///< of several ranks, whose replicas share the sequences of the batch
  ParallelSettings settings;
  /// Called after every step with its number, from 0, and its seconds.
  std::function<void(std::int64_t, double)> on_step;
};

struct BenchStepResult {
  double start_seconds = 0;          ///< building and filling the model, before the first step
  std::vector<double> step_seconds;  ///< one value a step, the first (cold) step included
  double median_seconds = 0;         ///< over the steps after the first; over the first if there is only one
  double tokens_per_second = 0;      ///< at the median
  double flops = 0;                  ///< model FLOPs of a step: 3 x forward (model/flops.h)
  std::int64_t peak_bytes = 0;       ///< largest resident size of the process so far
  std::int64_t tensor_peak_bytes = 0;  ///< on the device of the model
  double loss_first = 0, loss_last = 0;
  /// Times of one rank for a step, over the steps of the median. Collectives run beside the computation, so
  /// the three times need not add up to the step.
  struct RankTimes {
    double compute = 0;      ///< the step without waiting for a collective's result
    double collectives = 0;  ///< in which this rank sent, received or added; by NCCL, or waited for others
    double waiting = 0;      ///< in collectives, for other ranks; not told by NCCL
    std::int64_t bytes_sent = 0;
    std::int64_t peak_bytes = 0;
  };
  std::vector<RankTimes> ranks;  ///< of each rank; empty for one
  std::int64_t peak_bytes_all_ranks() const;
  /// Profile zones (core/profile.h) of the steps of the median: totals for one step.
  std::map<std::string, ZoneTotal> zones;
  /// Waits of the host for a device (core/host_wait.h) in these steps, all together, by name.
  std::map<std::string, std::int64_t> host_waits;
  std::int64_t launches =
      0;  ///< of kernels, products and graphs on a CUDA device, in a step (cuda::launches)
  std::int64_t launches_in_graphs = 0;  ///< of kernels and products, in these graphs
  std::int64_t warm_steps = 0;          ///< that the median is taken over
  /// Of the last step, on rank 0, under `tools/cuda_emulator/run --timeline`.
  std::optional<StepTimeline> timeline;
  double gemm_seconds() const;  ///< spent in matrix products, per step
};

/// Whole training steps on random tokens: forward, backward, clip, AdamW. All ranks call bench_step() and get
/// the result; times of steps and zones are of rank 0.
BenchStepResult bench_step(const BenchStepOptions& options, World& world);

/// Largest resident size of this process in bytes (VmHWM); 0 where /proc does not say.
std::int64_t process_peak_bytes();

}  // namespace nemocube
