#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "model/parameters.h"
#include "parallel/data_parallel/data_parallel.h"
#include "train/optimizer/optimizer.h"

/// How much memory a training run needs, computed before anything is allocated.
namespace nemocube {

struct MemoryItem {
  std::string what;
  std::int64_t bytes = 0;
};

/// How data-parallel ranks divide the state of a run; by default there is one rank.
struct DividedState {
  std::int64_t dp = 1, dp_shard = 1;
  DataParallelOptions options = {};
  std::int64_t microbatches = 1;  ///< of a step on each rank
};

/// Exact bytes of the tensors that live from the first step to the last, in this order: weights (with
/// buffers), gradients, masters, moments. `parameters` may be meta tensors.
///   weights    each in its own dtype
///   gradients  f32 (f64 for f64 weights), of trainable parameters
///   masters    f32, of trainable parameters stored in bf16
///   moments    AdamW and Adam: two of the gradients' size; SGD: one with momentum, none without
/// Where several ranks divide the state, each item is what one rank keeps, alignment of FlatUnit included, and
/// two more items say what is whole for a while, at most:
///   gathered weights         ZeRO-3: the root, and two neighbouring blocks, or all blocks where they are kept
///   gradients being reduced  ZeRO-2 and 3: the same of the gradients
std::vector<MemoryItem> state_memory(const ParameterStore& parameters, const OptimizerOptions& options,
                                     const DividedState& division = {});

struct ActivationOptions {
  std::int64_t tokens = 0;     ///< of one microbatch
  std::int64_t sequences = 1;  ///< that these tokens belong to
  bool checkpointing = false;  ///< of activations
  std::int64_t loss_rows = 0;  ///< NemotronH::loss_chunk_rows
};

/// Estimated bytes that one microbatch holds at the peak of its backward pass. The estimate adds up the
/// memory that every operation keeps (the "keeps" of its contract in ops/), the memory that the largest block
/// keeps once more for the gradients inside that block, and one chunk of logits. It omits scratch memory of
/// kernels and counts gradients that reuse other memory. For a step of a small model it is 0.75 to 1.55 times
/// the actual memory.
std::int64_t activation_memory(const NemotronHConfig& config, DType dtype, const ActivationOptions& options);

std::int64_t total_bytes(const std::vector<MemoryItem>& items);
/// "weights 1.25 GB, gradients 2.50 GB, ...", without items of 0 bytes.
std::string describe(const std::vector<MemoryItem>& items);

}  // namespace nemocube
