#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "model/parameters.h"
#include "train/optimizer/optimizer.h"

/// How much memory a training run needs, computed before anything is allocated.
namespace nemocube {

struct MemoryItem {
  std::string what;
  std::int64_t bytes = 0;
};

/// Exact bytes of the tensors that live from the first step to the last, in this order: weights (with
/// buffers), gradients, masters, moments. `parameters` may be meta tensors.
///   weights    each in its own dtype
///   gradients  f32 (f64 for f64 weights), of trainable parameters
///   masters    f32, of trainable parameters stored in bf16
///   moments    AdamW and Adam: two of the gradients' size; SGD: one with momentum, none without
std::vector<MemoryItem> state_memory(const ParameterStore& parameters, const OptimizerOptions& options);

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
