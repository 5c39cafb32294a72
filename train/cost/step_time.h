#pragma once
#include <string>
#include <vector>

#include "train/cost/gpu_rates.h"
#include "train/cost/run_costs.h"

/// How long a training step on GPUs could take, from sizes and rates alone.
namespace nemocube {

struct StepTimeOptions {
  GpuRates gpu = {};
  LinkRates links = {};
  ReachedShares reached = {};
};

/// Seconds of one step, of the rank that takes longest.
struct StepTime {
  struct Part {
    std::string name;
    double seconds = 0;
  };
  std::vector<Part>
      compute;  ///< "products", "experts", "attention", "scan", "memory", "recomputed", "optimizer"
  std::vector<Part> exposed;  ///< communication that nothing hides, by group
  double hidden = 0;          ///< communication beside computation
  double idle = 0;            ///< of the pipeline
  double seconds = 0;         ///< all but hidden communication
  double tokens = 0;          ///< of the step, on all ranks
  double model_flops = 0;     ///< of the step, on all ranks: training_flops_per_token()
};

/// The estimate:
///
///     a product        the longer of its operations at the reached share of the peak and of its bytes; a
///                      weight's gradient is f32, read and written
///     frozen weights   have no product for their gradient, and blocks that come before everything trained no
///                      backward pass
///     other kernels    attention and scan by their operations, the rest by the bytes that their contracts
///                      move
///     experts          all equally loaded
///     a collective     its bytes (RankTraffic) over its link, and a latency for each call. A ring over
///                      several nodes uses the interfaces of all its GPUs of a node; an all-to-all sends to
///                      each rank of another node through the GPU's own
///     what is hidden   weights that are gathered and gradients that are reduced over data-parallel ranks,
///                      for as long as the passes compute; all else waits
///     a pipeline       its schedule with the passes' times (parallel/schedule/simulate.h); exchanges wait
///
/// Launches, the host and the data cost nothing. Kernels of f32 models are taken to reach 0.9 of the rate of
/// f32 multiply-adds.
StepTime step_time(RunCosts& costs, const StepTimeOptions& options);

/// For `nemocube plan`: the estimate and its assumptions.
std::string to_string(const StepTime& time, const std::string& gpu, std::int64_t ranks,
                      const StepTimeOptions& options);

}  // namespace nemocube
