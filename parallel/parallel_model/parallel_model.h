#pragma once
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/stack.h"
#include "parallel/comm/process_groups.h"
#include "parallel/data_parallel/data_parallel.h"
#include "parallel/parallel_model/parallel_plan.h"
#include "parallel/parallel_model/pipeline_transfers.h"

namespace nemocube {

/// A model, or this rank's part of one, with all parallelism of a plan installed. One rank is a grid of ones:
/// then nothing is installed, and collectives return what they are given.
///
/// The ranks of a replica (groups tp, cp, pp) get the same microbatches; Sequences always describe whole
/// microbatches. All ranks of the plan's grid call every function together, in the same order. Other ranks of
/// the world know nothing of the model: "all ranks" below means all ranks of the grid.
class ParallelModel {
 public:
  /// `model` was built on Device::meta with part_of() of this plan; its memory is allocated here on `device`.
  /// The model, and `groups` of the plan's grid, with used_groups() at least, must outlive this object.
  ParallelModel(Stack& model, const ParallelPlan& plan, const ProcessGroups& groups, Device device);
  /// One rank with the whole model. The memory of the model stays as it is.
  explicit ParallelModel(Stack& model);
  ~ParallelModel();

  Stack& model() const { return model_; }
  const ParallelPlan& plan() const { return plan_; }
  const GridPlace& place() const { return place_; }
  DataParallel& data() const { return *data_; }
  Communicator& all() const { return groups_.all(); }            ///< all ranks of the grid
  Communicator& replicas() const { return groups_[Group::dp]; }  ///< the ranks with other microbatches
  Communicator& pipeline() const { return groups_[Group::pp]; }
  /// Whether this rank's losses are to be added: true on one of the ranks that compute the same losses.
  bool counts_loss() const { return place_.tp == 0 && model_.part().head(); }
  /// True on one rank of each replica.
  bool first_of_replica() const { return place_.tp == 0 && place_.cp == 0 && place_.pp == 0; }

  /// Whether each rank can run forward passes by itself while it holds all weights (DataParallel::hold).
  bool independent_replicas() const;
  /// The largest value of all ranks.
  std::int64_t largest(std::int64_t value) const;
  /// Sums of all ranks, in place.
  void sum(std::span<std::int64_t> values) const;
  double sum(double value) const;

  /// The part of ids or labels [T], in host memory, that enters this rank's forward pass or loss.
  Tensor own_tokens(const Tensor& per_token, const Sequences& whole) const;
  /// Rows of the residual stream on this rank.
  std::int64_t residual_rows(const Sequences& whole) const;
  /// Memory for what a transfer brings of a microbatch: the residual stream, and side rows where they pass
  /// between the two stages (Stack::boundary_before()), or the gradients of both.
  Tensor room(const Transfer& transfer, const Sequences& whole) const;

  /// The program of this rank's part of the pipeline in a step of `microbatches` microbatches.
  const Program& program(std::int64_t microbatches);
  /// Executes the exchanges of this rank's programs.
  PipelineTransfers& transfers() { return transfers_; }
  /// The chunk of the model that is this stage; std::logic_error when another rank has it.
  std::size_t chunk_of(std::int64_t stage) const;

  /// A forward pass without backward through all stages: Stack::forward() of the whole model. The hidden
  /// states are on the ranks of the last stage, elsewhere they are undefined. With a state, no sequence is
  /// cut over cp: the ranks of a cp group compute the same.
  Var hidden(Context& ctx, const Tensor& ids, const Sequences& sequences, DecodeState* state = nullptr);
  /// Logits of `rows` of hidden() with a state, over the whole vocabulary, on every
  /// rank of the replica: [rows, vocabulary].
  Tensor logits(const Var& hidden, const std::vector<std::int64_t>& rows, const Sequences& sequences);

 private:
  ParallelModel(Stack& model, const ParallelPlan& plan, std::unique_ptr<const ProcessGroups> own);
  struct Installed;
  std::unique_ptr<const ProcessGroups> own_groups_;  // null: the caller has them
  Stack& model_;
  ParallelPlan plan_;
  const ProcessGroups& groups_;
  GridPlace place_;
  std::unique_ptr<Installed> installed_;
  std::unique_ptr<DataParallel> data_;
  std::map<std::int64_t, Program> programs_;  // by number of microbatches
  Program forward_program_;                   // of hidden()
  PipelineTransfers transfers_;
};

/// The part of the model that rank `place` of the plan's grid holds.
ModelPart part_of(const ParallelPlan& plan, const ModelSetup& setup, const GridPlace& place);

}  // namespace nemocube
