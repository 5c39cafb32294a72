#pragma once
#include <vector>

#include "parallel/planner/step_traffic.h"
#include "train/cost/training_memory.h"
#include "train/optimizer/optimizer.h"

namespace nemocube {

/// The share of a step in which pipeline ranks are idle, as a mean over ranks: with free
/// transfers, F = 1, B = 2, I = W = 1 in each stage, or in proportion to the floating-point
/// operations of the stages (model/flops.h).
struct Bubble {
  double of_equal_stages = 0, of_own_stages = 0;
};

/// Memory and traffic of each rank of a run, computed from sizes alone, for any number of ranks.
class RunCosts {
 public:
  /// Throws Error as TensorCuts and PipelinePlan::schedule() do.
  RunCosts(const ModelSetup& setup, const ParallelPlan& plan, const StepLoad& load,
           const OptimizerOptions& optimizer);

  const ParallelPlan& parallel() const { return state_.parallel; }
  const ModelSetup& setup() const { return setup_; }
  const ModelConfig& config() const { return setup_.config; }
  const StepLoad& load() const { return load_; }
  const PlannedGroups& groups() const { return passes_.groups(); }

  /// Elements of the tensors that a rank computes with.
  std::int64_t parameters(int rank) { return local(rank).elements; }
  /// Elements that norms and checkpoints take from this rank. The sum over ranks are the model's.
  std::int64_t counted_parameters(int rank);
  /// state_memory() and, as an estimate, activation_memory().
  std::vector<MemoryItem> memory(int rank);
  /// The most bytes that this rank copies to the host's memory for a checkpoint that is written while
  /// training goes on (checkpoint.is_async).
  std::int64_t snapshot_bytes(int rank);
  /// Estimated memory of NCCL on a CUDA device, which comes on top (nccl_memory.h).
  std::int64_t nccl_bytes(int rank);
  /// Traffic of train_step(): the passes (StepTraffic), and the sums that it forms over ranks.
  RankTraffic::Sums traffic(int rank);
  Bubble bubble() const;

 private:
  const LocalParameters& local(int rank);

  ModelSetup setup_;
  StepLoad load_;
  StateOptions state_;
  StepTraffic passes_;
  std::int64_t tensors_;                   // of the whole model
  std::vector<std::int64_t> activations_;  // of pipeline ranks
};

}  // namespace nemocube
