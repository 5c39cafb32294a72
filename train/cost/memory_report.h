#pragma once
#include <string>

#include "data/datasets/dataset.h"
#include "model/stack.h"
#include "train/cost/gpu_fit.h"
#include "train/cost/training_memory.h"
#include "train/ranks/rank_sizes.h"
#include "train/recipe/recipe.h"

namespace nemocube {

/// Peak memory of a rank of a run of this recipe on `device`, the one that needs most.
///
/// On a CUDA device: state_memory(), what the largest microbatch of the run holds besides, which is counted
/// by a step on Device::planned where one rank computes (planned_peak_bytes) and else activation_memory(),
/// and what CUDA and its libraries take of the device's memory, NCCL among them where several ranks use it.
///
/// On the CPU: state_memory(), activation_memory() of the largest microbatch of the run or of generated
/// answers, the copy that checkpoint.is_async makes, blocks that the allocator keeps, products that oneDNN
/// prepares, and what the process holds besides. The sum is an upper bound of the resident memory of the
/// process (its VmHWM), at most 15 % above it for runs of more than 300 MB; where a limit counts address
/// space, it is one of that. `model` is whole and may consist of meta tensors in the dtype of the run. Throws
/// Error as plan_model() does.
std::vector<MemoryItem> memory_of_run(const Recipe& recipe, const Stack& model, const Dataset& dataset,
                                      const RankSizes& ranks, Device device);

/// What a rank of a run on a CUDA device copies to the host's memory for a checkpoint, at most; 0 without
/// checkpoint.is_async.
std::int64_t host_copy_bytes(const Recipe& recipe, const Stack& model, const Dataset& dataset,
                             const RankSizes& ranks, Device device);

/// One sentence: the sum, its items, and that activations are an estimate.
std::string memory_sentence(const std::vector<MemoryItem>& items, const RankSizes& sizes, Device device);

/// What memory_sentence() lacks where the limit is lower than `items`: the limit, and what could be done that
/// this recipe does not do yet; empty where the memory is enough.
std::string memory_warning(const Recipe& recipe, const std::vector<MemoryItem>& items, DType dtype,
                           const RankSizes& sizes, Device device);

/// Whether the rank of memory_of_run() on a CUDA device fits on such a GPU, which need not be there.
GpuFit fit_of_run(const std::vector<MemoryItem>& items, const GpuRates& gpu);

/// What would make a run smaller and is not done yet: "Lower step_scheduler.local_batch_size or divide the
/// model among more ranks".
std::string memory_advice(const Recipe& recipe, DType dtype, const RankSizes& sizes);

/// memory_sentence() for a recipe alone, and what could be done that the recipe does not do yet; empty when
/// the recipe's files cannot be read. `config`: of config_of_model().
std::string explain_memory(const Recipe& recipe, const ModelConfig& config, std::int64_t ranks,
                           Device device) noexcept;

}  // namespace nemocube
