#pragma once
#include <string>

#include "data/datasets/dataset.h"
#include "model/stack.h"
#include "train/cost/gpu_fit.h"
#include "train/cost/training_memory.h"
#include "train/ranks/rank_sizes.h"
#include "train/recipe/recipe.h"

namespace nemocube {

/// Peak memory of a run of this recipe on `device`, for the rank that needs most.
///
/// On a CUDA device: state_memory(); the tensors of the largest microbatch of the run, which for one rank are
/// counted by a step on Device::planned (planned_peak_bytes), and otherwise are activation_memory(); and the
/// device memory of CUDA and its libraries, NCCL among them where several ranks use it.
///
/// On the CPU: state_memory(), activation_memory() of the largest microbatch of the run or of generated
/// answers, the copy that checkpoint.is_async makes, blocks that the allocator keeps, products that
/// oneDNN prepares, and other memory of the process. The sum is an upper bound of the resident memory of
/// the process (its VmHWM), at most 15 % above it for runs of more than 300 MB; where a limit counts address
/// space, it is an upper bound of that. `model` is whole and may consist of meta tensors in the dtype of the
/// run. Throws Error as plan_model() does.
std::vector<MemoryItem> memory_of_run(const Recipe& recipe, const Stack& model, const Dataset& dataset,
                                      const RankSizes& ranks, Device device);

/// The most bytes that a rank of a run on a CUDA device copies to the host's memory for a checkpoint; 0
/// without checkpoint.is_async.
std::int64_t host_copy_bytes(const Recipe& recipe, const Stack& model, const Dataset& dataset,
                             const RankSizes& ranks, Device device);

/// One sentence: the sum, its items, and that activations are an estimate.
std::string memory_sentence(const std::vector<MemoryItem>& items, const RankSizes& sizes, Device device);

/// The addition to memory_sentence() where the limit is lower than `items`: the limit, and ways to need less
/// that this recipe does not use yet; empty where the memory is enough.
std::string memory_warning(const Recipe& recipe, const std::vector<MemoryItem>& items, DType dtype,
                           const RankSizes& sizes, Device device);

/// Whether the rank of memory_of_run() on a CUDA device fits on such a GPU, which need not be there.
GpuFit fit_of_run(const std::vector<MemoryItem>& items, const GpuRates& gpu);

/// Ways to make a run smaller that the recipe does not use yet: "Lower step_scheduler.local_batch_size or
/// divide the model among more ranks".
std::string memory_advice(const Recipe& recipe, DType dtype, const RankSizes& sizes);

/// memory_sentence() for a recipe alone, and the ways to need less that it does not use yet; empty when the
/// recipe's files cannot be read. `config`: of config_of_model().
std::string explain_memory(const Recipe& recipe, const ModelConfig& config, std::int64_t ranks,
                           Device device) noexcept;

}  // namespace nemocube
