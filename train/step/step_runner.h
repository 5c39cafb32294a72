#pragma once
#include <map>
#include <span>
#include <vector>

#include "core/variants.h"
#include "data/loader/batch.h"
#include "parallel/parallel_model/parallel_model.h"
#include "train/step/microbatch_rows.h"
#include "train/step/step_replay.h"
#include "train/step/step_tensors.h"

namespace nemocube {

/// Executes the forward and backward passes of one step, on this rank's part of the pipeline.
class StepRunner {
 public:
  /// Gradients are of `loss_scale` times the sum of all token losses, those of noised tokens times
  /// `noised_factor` besides. With `replay`, after its begin_step(),
  /// the passes of each microbatch become one graph, or all of run() becomes part of one.
  StepRunner(ParallelModel& model, std::span<const TokenBatch> microbatches, const GradScale& loss_scale,
             double noised_factor, const KernelChoice* kernels, StepReplay* replay = nullptr);
  /// Adds losses and counts of all ranks to `sums`, and returns when all gradients are summed over all ranks.
  void run(const Program& program, StepTensors& sums);
  /// The numbers on which the launches of run() depend.
  GraphCache::Key key() const;
  /// After run() has failed in a capture: releases what run() has made.
  void abandon();

 private:
  /// One microbatch in one chunk, between the start of its forward and the end of its backward pass.
  struct Live {
    Tape tape;
    BlockRecords records, mtp_records;
    RouterSums sums;  // of each call of the chunk's MoE layers
    Var in, out;
    std::vector<Var> ahead;  // of each depth of multi-token prediction
  };
  double aux_grad_scale() const;
  bool is_whole_microbatch(const Program& program, std::size_t at) const;
  void run_whole(std::int64_t microbatch, bool last, bool ends, StepTensors& sums);
  void exchange(const Exchange& transfers);
  void forward(const Action& action);
  void backward(const Action& action, bool last, StepTensors& sums);
  void finish(StepTensors& sums);
  void make_records(Live& m, std::size_t chunk) const;
  Var start_loss(Context& ctx, Live& m, std::int64_t microbatch, StepTensors& sums);
  void add_sums(const RouterSums& own, std::size_t chunk, StepTensors& sums) const;

  std::int64_t last_stage() const { return parallel_.plan().pipeline.last_stage(); }
  MicrobatchRows& rows(std::int64_t microbatch) { return rows_[static_cast<std::size_t>(microbatch)]; }

  ParallelModel& parallel_;
  Stack& model_;
  std::vector<MicrobatchRows> rows_;  // of each microbatch
  GradScale loss_scale_;
  const KernelChoice* kernels_;
  StepReplay* replay_;                                          // null: microbatches are no graphs
  std::vector<std::vector<std::int64_t>> moe_numbers_;          // of each chunk
  std::map<std::pair<std::int64_t, std::int64_t>, Live> live_;  // by stage and microbatch
};

}  // namespace nemocube
