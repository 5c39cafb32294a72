#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/planner/local_parameters.h"
#include "parallel/planner/rank_traffic.h"
#include "train/optimizer/optimizer.h"

/// How much memory a training run needs, computed before anything is allocated.
namespace nemocube {

struct MemoryItem {
  std::string what;
  std::int64_t bytes = 0;
  bool of_libraries = false;  ///< memory of the driver and libraries of CUDA, not of tensors
};

/// The choices that the state of a run's ranks depends on. Default: one rank, which has everything.
struct StateOptions {
  ParallelPlan parallel = {};
  OptimizerOptions optimizer = {};
  std::int64_t microbatches = 1;  ///< of a step on each replica
};

/// Exact bytes of the tensors that a rank keeps from the first step to the last, in this order: weights (with
/// buffers), gradients, masters, moments.
///   weights    each in its own dtype
///   gradients  f32 (f64 for f64 weights), of trainable parameters
///   masters    f32, of trainable parameters stored in bf16
///   moments    AdamW and Adam: two of the gradients' size; SGD: one with momentum, none without
/// On several ranks weights and gradients lie in buffers whose gaps count (FlatLayout); masters and moments
/// have none. Two more items then give the most memory of tensors that are whole for a while:
///   gathered weights         ZeRO-3: the root, and two neighbouring blocks, or all blocks where they are
///                            kept. Routed experts do not count where no two ranks divide them (expert
///                            parallelism over all ranks)
///   gradients being reduced  ZeRO-2 and 3: gradients of all trained weights of the root and of these
///                            blocks
/// `local`: the tensors of the rank's place in the grid (ModelParts).
std::vector<MemoryItem> state_memory(const LocalParameters& local, const PlannedGroups& groups, int rank,
                                     const StateOptions& options);

/// At most, the bytes of weights, masters and moments that a rank owns, and copies for a checkpoint which is
/// written while training goes on (train/checkpoint/snapshot.h).
std::int64_t snapshot_bytes(const LocalParameters& local, const PlannedGroups& groups, int rank,
                            const StateOptions& options);

struct ActivationOptions {
  std::int64_t tokens = 0;     ///< of one microbatch
  bool checkpointing = false;  ///< of activations
  std::int64_t loss_rows = 0;  ///< Stack::loss_chunk_rows
  std::int64_t live = 1;       ///< microbatches, of one stage each, that are alive at once on a pipeline rank
  std::int64_t sequences = 1;  ///< of one microbatch
  bool forward_only = false;   ///< nothing is kept for a backward pass
};

/// Estimated bytes that the microbatches of a rank hold at the peak of a step, on a rank of the pipeline
/// stages `chunks` of the plan: the largest value over the loss and the backward pass of each block. Every
/// operation holds the tensors that its contract in ops/ says ("keeps"), in blocks of the allocator. Scratch
/// memory of kernels is left out, and memory that is freed within an operation counts as
/// held. For a step of a small model the estimate is 0.75 to 1.45 times the actual memory.
/// Experts are taken to get equally many tokens.
std::int64_t activation_memory(const ModelSetup& setup, DType dtype, const ActivationOptions& options,
                               const ParallelPlan& plan = {}, std::int64_t pipeline_rank = 0);

/// Bytes of the states and caches of `sequences` sequences of up to `length` tokens that are generated at
/// once.
std::int64_t decode_state_memory(const ModelConfig& config, DType dtype, std::int64_t sequences,
                                 std::int64_t length);

std::int64_t total_bytes(const std::vector<MemoryItem>& items);
/// "weights 1.25 GB, gradients 2.50 GB, ...", without items of 0 bytes.
std::string describe(const std::vector<MemoryItem>& items);

}  // namespace nemocube
