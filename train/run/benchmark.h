#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "parallel/comm/world.h"
#include "train/recipe/environment.h"

/// Recipes of AutoModel's class BenchmarkingRecipeForNextTokenPrediction
/// (nemo_automodel/recipes/llm/benchmark.py): the time of training steps on random tokens.
namespace nemocube {

struct BenchmarkResult {
  std::int64_t steps = 0, warmup_steps = 0;  ///< as the recipe says, the former with the latter
  std::int64_t ranks = 1, global_batch = 0, local_batch = 0, sequence_length = 0;
  std::optional<double> peak_tflops;  ///< of one rank's device
  double setup_seconds = 0;           ///< groups, model, optimizer and data, until the first step; on rank 0
  std::vector<double> step_seconds;   ///< of each step done, on the rank that took longest
  std::vector<double> losses;         ///< of each step done
  std::int64_t skipped_steps = 0;     ///< steps whose loss or gradient was not finite
  double flops = 0;                   ///< of a step (step_flops()), of all ranks
  double automodel_flops = 0;         ///< of a step (automodel_step_flops()), of all ranks
  std::int64_t peak_bytes = 0;        ///< most memory that tensors held, of the rank with most

  bool is_warmup(std::int64_t step) const { return step < warmup_steps; }
  double warmup_seconds() const;
  double training_seconds() const;  ///< of the steps after the warm-up
  double mean_seconds() const;      ///< training_seconds() over these steps
  double tokens() const;            ///< of a step
};

/// The rate of `flops` operations in `seconds`, in percent of the peak of all ranks;
/// `peak_tflops`: 10^12 a second, of one rank.
double mfu_percent(double flops, std::int64_t ranks, double seconds, double peak_tflops);

/// Runs the steps: forward and backward of the microbatches and the update, at the constant learning rate of
/// the optimizer section, without clipping. All else in the recipe is as in training: the ranks, the device,
/// kernels, dtypes, activation checkpointing, CUDA graphs, experts in turn
/// (model.backend.fake_balanced_gate). A step's time begins when its rows are there, and ends when the host
/// has its results. Calls `on_step` on rank 0 after each step. `recipe`: is_benchmark(). All ranks call
/// run_benchmark() together, and get the result. Throws Error like run_training().
BenchmarkResult run_benchmark(const Recipe& recipe, const ParallelSettings& settings, World& world,
                              Device device, const std::function<void(const BenchmarkResult&)>& on_step);

}  // namespace nemocube
