#pragma once
#include <map>
#include <span>
#include <vector>

#include "core/variants.h"
#include "data/loader/batch.h"
#include "parallel/parallel_model/parallel_model.h"
#include "train/step/step_tensors.h"

namespace nemocube {

/// Executes the forward and backward passes of one step, on this rank's part of the pipeline.
class StepRunner {
 public:
  /// Gradients are those of `loss_scale` times the sum of all token losses.
  StepRunner(ParallelModel& model, std::span<const TokenBatch> microbatches, double loss_scale,
             const KernelChoice* kernels);
  /// Adds losses and counts of this rank to `sums`.
  void run(const Program& program, StepTensors& sums);

 private:
  /// What this rank computes with of a microbatch, on the model's device.
  struct OwnRows {
    Tensor ids;     // where the model's part has the embeddings
    Labels labels;  // where it has the head
  };
  /// One microbatch in one chunk, between the start of its forward and the end of its backward pass.
  struct Live {
    Tape tape;
    BlockRecords records;
    RouterSums sums;  // of the chunk's MoE layers
    Var in, out;
  };
  void forward(const Action& action);
  void backward(const Action& action, bool last, StepTensors& sums);
  Var start_loss(Context& ctx, Live& m, std::int64_t microbatch, StepTensors& sums);
  void add_sums(const RouterSums& own, std::size_t chunk, StepTensors& sums) const;

  std::int64_t last_stage() const { return parallel_.plan().pipeline.last_stage(); }
  const TokenBatch& batch(std::int64_t microbatch) const {
    return batches_[static_cast<std::size_t>(microbatch)];
  }
  const OwnRows& own_rows(std::int64_t microbatch) const {
    return rows_[static_cast<std::size_t>(microbatch)];
  }

  ParallelModel& parallel_;
  NemotronH& model_;
  std::span<const TokenBatch> batches_;
  std::vector<OwnRows> rows_;  // of each microbatch
  double loss_scale_;
  const KernelChoice* kernels_;
  std::vector<std::vector<std::int64_t>> moe_numbers_;          // of each chunk
  std::map<std::pair<std::int64_t, std::int64_t>, Live> live_;  // by stage and microbatch
};

}  // namespace nemocube
