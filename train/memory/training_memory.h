#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "model/parameters.h"
#include "train/optimizer/optimizer.h"

/// How much memory a training run needs, before it is asked for.
namespace nemocube {

struct MemoryItem {
  std::string what;
  std::int64_t bytes = 0;
};

/// Exact bytes of what lives from the first step to the last, in this order: weights (with buffers),
/// gradients, masters, moments. `parameters` may be meta tensors.
///   weights    each in its own dtype
///   gradients  f32 (f64 for f64 weights), of the parameters that want them
///   masters    f32, of those that are stored in bf16
///   moments    AdamW and Adam: two of the gradients' size; SGD: one with momentum, none without
std::vector<MemoryItem> state_memory(const ParameterStore& parameters, const OptimizerOptions& options);

struct ActivationOptions {
  std::int64_t tokens = 0;     ///< of one microbatch
  std::int64_t sequences = 1;  ///< these tokens belong to
  bool checkpointing = false;  ///< of activations
  std::int64_t loss_rows = 0;  ///< NemotronH::loss_chunk_rows
};

/// Estimate of what one microbatch holds at the peak of its backward pass: what every operation keeps (the
/// "keeps" of its contract in ops/), once more what the block with the most keeps, for the gradients inside
/// that block, and one chunk of logits. Scratch memory of kernels is left out, gradients that take the place of
/// others are counted: the estimate lies between 0.75 and 1.55 times what a step of a small model holds.
std::int64_t activation_memory(const NemotronHConfig& config, DType dtype, const ActivationOptions& options);

std::int64_t total_bytes(const std::vector<MemoryItem>& items);
/// "weights 1.25 GB, gradients 2.50 GB, ...", without items of no bytes.
std::string describe(const std::vector<MemoryItem>& items);

}  // namespace nemocube
