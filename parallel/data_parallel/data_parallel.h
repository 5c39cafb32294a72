#pragma once
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "model/stack.h"
#include "parallel/comm/process_groups.h"
#include "parallel/data_parallel/first_exchanges.h"
#include "parallel/data_parallel/flat_unit.h"
#include "parallel/data_parallel/gradient_parts.h"

namespace nemocube {

struct DataParallelOptions {
  ZeroLevel level = ZeroLevel::parameters;
  /// true: gradients are reduced after the last microbatch of a step only (DDP, ZeRO-1, FSDP2), and stay
  /// whole until then. false: after every microbatch (Megatron's ZeRO-2 and 3).
  bool reduce_last_only = true;
  /// ZeRO-3: weights of a block are released after its forward pass and gathered again for backward. The last
  /// block keeps its weights, because its backward pass comes next.
  bool reshard_after_forward = true;
  bool reshard_experts_after_forward = true;  ///< the same for routed experts
  bool overlap =
      true;  ///< gather ahead and reduce during backward; otherwise wait for each collective at once
};

/// Data-parallel training: every rank runs its part of the model on its own rows.
///
/// A unit is a block's mixer, or, the root, everything else (embeddings, norms, head). Gradients are summed
/// over ranks in f32 (f64 for f64), never divided: the loss of each rank is scaled by the labels of all
/// ranks. The ranks that hold the same parameters form the groups "dp_cp" ("dp_shard_cp" shards,
/// "dp_replicate" holds replicas), for routed experts "expt_dp", which shards them with or without replicas.
/// A gradient that several ranks form in parts is completed first (GradientSource).
///
///                 before the step   forward, backward of a block      after its backward      after the
///                                                                                             update
///     none                                                            all-reduce gradients
///     optimizer                                                       reduce-scatter          all-gather
///                                                                                             values
///     gradients                                                       reduce-scatter, free    all-gather
///                                                                                             values
///     parameters  gather the root   gather before, release after      reduce-scatter, free    release the
///                                                                                             root
///
/// Where a rank alone holds a unit's values (not FlatUnit::divides_values()), they are not moved: routed
/// experts where expert parallelism takes all ranks.
///
/// While a block computes, the weights of the next one are gathered and the gradients of the one before are
/// reduced. Both begin behind the block's first exchange with other ranks (FirstExchanges); without an
/// exchange, with the block.
///
/// All ranks call every function together. A collective that fails throws Error
/// (parallel/comm/communicator.h). With dp_replicate > 1 (HSDP), groups of ranks shard as above and then sum
/// their parts over the replicas. By default a backward pass covers all blocks and is the last of its step; a
/// pipeline calls begin_backward(). Sources: PyTorch FSDP2; Megatron-LM, distrib_optimizer.py.
class DataParallel final : public BlockHooks {
 public:
  /// Takes over the parameters of `model`, which was built on Device::meta, and allocates this rank's part of
  /// them on `device`. A model that has memory already is left alone: the model of one rank, which divides
  /// nothing (ZeroLevel::none). Tensor parallelism must be installed before, so that its exchanges are known.
  /// The model must outlive this object.
  DataParallel(Stack& model, const ProcessGroups& groups, const DataParallelOptions& options, Device device,
               const GradientSourceOf& source_of = {});
  ~DataParallel() override;

  /// The ranks that hold other rows.
  Communicator& group() const { return dp_; }
  /// Call this once the own parts of the parameters are initialised or loaded: all ranks get the values that
  /// they keep. `trained_alone`: trained parameters only, as after an update.
  void spread_values(bool trained_alone = false);

  // A training step, in this order.
  void begin_step();
  /// Before a backward pass, or its work on weights. `last`: the last pass of these blocks in the step.
  void begin_backward(bool last);
  /// Call this after the last backward pass: returns when Parameter::gradient() is the sum over all ranks.
  void finish_gradients();
  /// The square sum (ops/global_norm/global_norm.h) of the gradients of all parameters of all ranks, every
  /// element once.
  Tensor square_sum_of_gradients() const;
  /// Call this after the update, also where it was skipped.
  void finish_update();
  /// Call this after a step that failed in a capture (core/cuda/graph.h), of which nothing has run: undoes
  /// begin_step(). Called while the exception unwinds the stack: collectives under way are not waited for.
  void abandon_step();

  enum class Held { root, everything };
  /// For forward passes without backward. hold(root): all ranks must run equally many passes, because each
  /// pass gathers the blocks. hold(everything): each rank runs as it likes.
  void hold(Held what);
  void let_go();

  void before_forward(std::int64_t block) override;
  void after_forward(std::int64_t block) override;
  void before_backward(std::int64_t block) override;
  void after_backward(std::int64_t block) override;
  void gradients_written(std::int64_t block) override;

 private:
  struct Flat {
    FlatUnit unit;
    bool expert;
    Communicator *shard, *replicas;
  };
  /// One flat for each dtype of dense parameters, and one for each dtype of routed experts.
  struct Unit {
    std::vector<Flat> flats;
    GradientParts parts;
    std::vector<Work> gathers;  // started, not waited for
    bool gathered = true;
    bool reduced = false;  // own_gradients hold sums of earlier microbatches of this step
  };
  /// Has not started: waits for `sums`, the sums of partial gradients, which are under way.
  struct WaitingReduction {
    Unit* unit;
    std::vector<GradientParts::Sum> sums;
  };
  struct PendingReduction {
    std::vector<Work> works;
    Unit* unit;
    std::vector<Tensor> parts;  // of sums to be added to own_gradients
  };
  bool shards_values() const { return options_.level == ZeroLevel::parameters; }
  bool frees_gradients() const { return options_.level >= ZeroLevel::gradients; }
  bool reduces_now() const { return last_microbatch_ || !options_.reduce_last_only; }
  bool reshards(const Flat& flat) const {
    return flat.expert ? options_.reshard_experts_after_forward : options_.reshard_after_forward;
  }
  Flat make_flat(std::vector<Parameter*> parameters, bool expert, Device device) const;
  Unit make_unit(const std::vector<Parameter*>& parameters, Device device,
                 const GradientSourceOf& source_of) const;
  Unit* block_unit(std::int64_t block);
  void start_waiting();
  void start_gather(Unit& unit);
  void gather(Unit& unit);
  void release(Unit& unit, bool after_forward = false);
  void take_gradient_memory(Unit& unit);
  void prepare_reduction(Unit& unit);
  void start_reduction();
  void finish_earlier_reductions();
  void finish(PendingReduction& reduction);

  Stack& model_;
  DataParallelOptions options_;
  const ProcessGroups& groups_;
  Communicator& dp_;
  std::map<std::int64_t, Unit> blocks_;
  Unit root_;
  bool keep_blocks_ = false;
  std::optional<FirstExchanges> exchanges_;
  // Started by start_waiting(), behind the next exchange of exchanges_.
  Unit* waiting_gather_ = nullptr;
  std::optional<WaitingReduction> waiting_reduction_;
  std::optional<std::int64_t> passed_backward_;  // the block, until something else is called
  std::vector<PendingReduction> reductions_;     // started, oldest first
  bool last_microbatch_ = true;
};

}  // namespace nemocube
