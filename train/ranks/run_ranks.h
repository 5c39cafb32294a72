#pragma once
#include <memory>
#include <optional>
#include <string>

#include "model/stack.h"
#include "parallel/comm/process_groups.h"
#include "parallel/parallel_model/parallel_model.h"
#include "train/checkpoint/run_state.h"
#include "train/model_io/model_io.h"
#include "train/ranks/rank_sizes.h"
#include "train/recipe/environment.h"

namespace nemocube {

/// The ranks of a run: the world, and the grid of its model, which has all of these ranks. Code about the job
/// alone (files, clocks, signals) asks the world here. ParallelModel has sums over the ranks of a model. On
/// one rank all functions below are free.
class RunRanks {
 public:
  /// `device`: where this rank's part of the model lies. Throws Error when the number of ranks does not fit
  /// the recipe.
  RunRanks(World& world, const DistributedSection& section, const ParallelSettings& settings, Device device);

  bool several() const { return world_.size() > 1; }
  bool first() const { return world_.rank() == 0; }
  World& world() const { return world_; }
  Device device() const { return device_; }
  const RankSizes& sizes() const { return sizes_; }
  RankLayout layout(const ParallelModel& model) const;
  std::int64_t dp_rank() const { return place_of(sizes_.grid, world_.rank()).dp(sizes_.grid); }
  std::int64_t dp_size() const { return sizes_.dp; }
  /// For logs: ranks, strategy, threads, libraries and kernel variants.
  std::string text(const KernelChoice& kernels) const;
  /// All ranks of the world; null for one rank.
  Communicator* world_group() const { return several() ? &world_.communicator() : nullptr; }

  /// tensor_plan_lines() in the log.
  void tell_tensor_plan(const ModelSetup& setup) const;

  /// Where a model lies (plan_model).
  Residence place_for(const ModelSetup& setup) const;

  /// underfill_warning() in the log, once, for the pipeline of the model; or its Error.
  void check_pipeline_fill(const ParallelModel& model, std::int64_t microbatches) const;

  /// Of all ranks of the world.
  std::int64_t largest(std::int64_t value) const;
  double sum(double value) const;
  /// Statistics of the world and of each of these groups so far on this
  /// rank. Waits for collectives of CUDA tensors.
  std::vector<CommStats> stats(const ProcessGroups& groups) const;
  /// Their sum.
  CommStats total_stats(const ProcessGroups& groups) const;

 private:
  World& world_;
  const DistributedSection& section_;
  ParallelSettings settings_;
  Device device_;
  RankSizes sizes_;
};

}  // namespace nemocube
