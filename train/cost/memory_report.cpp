#include "train/cost/memory_report.h"

#include <malloc.h>
#include <omp.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "core/allocator.h"
#include "core/cuda/runtime.h"
#include "core/memory_limit.h"
#include "data/hf/hf_config.h"
#include "ops/matmul/matmul.h"
#include "ops/matmul/matmul_cpu.h"
#include "train/assemble/diffusion_training.h"
#include "train/assemble/from_recipe.h"
#include "train/assemble/run_batches.h"
#include "train/cost/planned_load.h"
#include "train/cost/planned_step.h"
#include "train/cost/run_costs.h"
#include "train/datasets/recipe_datasets.h"
#include "train/ranks/plan_model.h"
#include "train/schedule/step_schedule.h"

namespace nemocube {

namespace {

// Code and data of libraries that a run touches after its first allocation, most of it oneDNN's; and what MPI
// holds.
constexpr std::int64_t code_bytes = 22'000'000, mpi_bytes = 20'000'000;

/// What a run holds besides tensors, as the limit counts it: code and data of libraries, the heap, and where
/// the limit counts untouched memory also the stacks of threads that have not started, and the room that the
/// allocator leaves free. The data set is loaded by now, so the heap holds it already.
std::int64_t besides_tensors(bool loads_mpi) {
  const MemoryLimit limit = memory_limit();
  std::int64_t bytes = code_bytes + (loads_mpi ? mpi_bytes : 0);
  if (!limit.counts_untouched) {
    std::int64_t all = 0, resident = 0, of_files = 0;
    std::ifstream("/proc/self/statm") >> all >> resident >> of_files;
    return bytes + of_files * ::sysconf(_SC_PAGESIZE) + static_cast<std::int64_t>(::mallinfo2().arena);
  }
  std::error_code error;
  const auto started = std::distance(std::filesystem::directory_iterator("/proc/self/task", error), {});
  pthread_attr_t attributes;
  std::size_t stack = 0;
  if (::pthread_getattr_default_np(&attributes) == 0) {
    ::pthread_attr_getstacksize(&attributes, &stack);
    ::pthread_attr_destroy(&attributes);
  }
  bytes += std::max<std::int64_t>(omp_get_max_threads() - started, 0) * static_cast<std::int64_t>(stack);
  const std::int64_t held = allocator(Device::cpu).stats().reserved_bytes;  // memory of the process
  return bytes + cpu_headroom + std::max<std::int64_t>(limit.used - held, 0);
}

/// Products of different shapes that oneDNN prepares in a run, at most. Each kind of block has a few, and a
/// pruned model has them for each block with sizes of its own; experts get other numbers of tokens in each
/// pass.
std::int64_t prepared_products(const Recipe& recipe, const ModelSetup& setup, const RankSizes& ranks,
                               const RunBatches& batches, std::int64_t passes) {
  // Validation has rows of its own lengths, and generated tokens come in any number.
  if (!recipe.validation_datasets.empty()) return cpu::most_onednn_plans;
  constexpr std::int64_t of_kind = 12, of_expert = 8;
  const std::int64_t variants = std::ssize(setup.variants()) + 1;  // and the head
  std::int64_t experts = 0;
  for (const std::int64_t of_layer : setup.expert_counts())
    experts += std::max<std::int64_t>(1, of_layer / ranks.grid.ep);
  const std::int64_t of_pass = (batches.vary ? of_kind * variants : 0) + of_expert * experts;
  const std::int64_t at_once = std::min<std::int64_t>(of_kind * variants, cpu::most_onednn_plans),
                     most = cpu::most_onednn_plans - at_once;
  return at_once + (passes > most / std::max<std::int64_t>(of_pass, 1) ? most : passes * of_pass);
}

PlannedSteps planned_steps(const Recipe& recipe, const StepLoad& load) {
  PlannedSteps steps{.dtype = load.dtype,
                     .optimizer = optimizer_options(*recipe.optimizer),
                     .microbatch = load.microbatch,
                     .microbatches = load.microbatches,
                     .activation_checkpointing = load.checkpointing,
                     .router_losses = load.router_losses};
  if (recipe.loss.kind == LossKind::chunked) steps.loss_chunk_rows = recipe.loss.chunk_len;
  steps.options.kernels = &recipe.kernels;
  if (draws_for_rows(recipe)) {  // numbers of rows are tables on the device
    const std::vector<std::int64_t> numbers(static_cast<std::size_t>(load.microbatch.count()));
    steps.microbatch = load.microbatch.numbered(numbers, load.microbatch.longest());
  }
  return steps;
}

/// What generating answers holds beside the state of the run.
std::int64_t answering_memory(const Recipe& recipe, const Stack& model, const RunBatches& batches,
                              const ParallelPlan& plan) {
  constexpr std::int64_t at_once = 32;  // answers
  const std::int64_t length = batches.longest_row + recipe.evaluation.max_new_tokens;
  return activation_memory(model.setup(), model.dtype(),
                           {.tokens = at_once * batches.longest_row,
                            .loss_rows = at_once,
                            .sequences = at_once,
                            .forward_only = true},
                           plan) +
         decode_state_memory(model.config(), model.dtype(), at_once, length);
}

}  // namespace

std::string memory_advice(const Recipe& recipe, DType dtype, const RankSizes& sizes) {
  std::vector<std::string> words;
  if (recipe.distributed.pipeline && recipe.distributed.pipeline->pp_microbatch_size > 1)
    words.emplace_back("lower distributed.pipeline.pp_microbatch_size");
  if (!recipe.distributed.pipeline && recipe.step_scheduler.local_batch_size > 1)
    words.emplace_back("lower step_scheduler.local_batch_size");
  if (!recipe.distributed.activation_checkpointing)
    words.emplace_back("set distributed.activation_checkpointing: true");
  if (dtype != DType::bf16) words.emplace_back("set model.torch_dtype: bf16");
  if (sizes.grid.ranks() > 1 && sizes.options.level != ZeroLevel::parameters)
    words.emplace_back("set distributed.strategy: fsdp2");
  words.emplace_back("divide the model among more ranks");
  std::string text = words[0];
  for (std::size_t i = 1; i < words.size(); ++i) text += cat(i + 1 < words.size() ? ", " : " or ", words[i]);
  text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

GpuFit fit_of_run(const std::vector<MemoryItem>& items, const GpuRates& gpu) {
  std::int64_t tensors = 0, libraries = 0;
  for (const MemoryItem& item : items) (item.of_libraries ? libraries : tensors) += item.bytes;
  GpuFit fit = fit_on(gpu, tensors, 0);
  fit.nccl = std::max<std::int64_t>(0, libraries - fit.context);
  return fit;
}

namespace {

/// What a run trains on, and what a step costs each of its ranks.
struct CostedRun {
  CostedRun(const Recipe& recipe, const Stack& model, const Dataset& dataset, const RankSizes& sizes,
            Device device)
      : ranks(sizes.grid),
        steps(schedule_steps(recipe, sizes.dp, batches_per_epoch(recipe, dataset, sizes))),
        corruption(recipe_corruption(recipe, model.config(), *recipe.dataset)),
        batches(corrupted(batches_of_run(dataset, loader_options(recipe, 0, sizes.dp), epochs_of(steps)),
                          corruption)),
        load(largest_load(recipe, model, sizes, device)),
        plan(plan_model(recipe.distributed, resolve_environment(recipe).settings, sizes, model.setup())),
        costs(model.setup(), plan, load, optimizer_options(*recipe.optimizer)) {}

  /// One of each pipeline stage, the one that has the most.
  std::vector<int> first_ranks_of_stages() const {
    std::vector<int> first;
    for (std::int64_t stage = 0; stage < ranks.pp; ++stage)
      first.push_back(static_cast<int>(ranks.first_rank_of_stage(stage)));
    return first;
  }

  GridSizes ranks;
  StepSchedule steps;
  std::optional<Corruption> corruption;
  RunBatches batches;
  StepLoad load;
  ParallelPlan plan;
  RunCosts costs;

 private:
  static std::int64_t batches_per_epoch(const Recipe& recipe, const Dataset& dataset,
                                        const RankSizes& sizes) {
    const std::int64_t rows = loader_options(recipe, 0, sizes.dp).batch_size * sizes.dp;
    return std::max<std::int64_t>(1, (dataset.size() + rows - 1) / rows);
  }
  StepLoad largest_load(const Recipe& recipe, const Stack& model, const RankSizes& sizes,
                        Device device) const {
    StepLoad largest = planned_load(recipe, model, sizes.dp);
    const std::int64_t sequences = std::max<std::int64_t>(1, std::min(batches.sequences, batches.tokens));
    std::vector<std::int64_t> offsets{0};
    if (model.choices().diffusion.paradigm == Paradigm::block_diff) {
      const std::int64_t texts = std::max<std::int64_t>(1, sequences / 2), tokens = batches.tokens / 2;
      for (std::int64_t i = 0; i < texts; ++i)
        for (int half = 0; half < 2; ++half)
          offsets.push_back(offsets.back() + tokens * (i + 1) / texts - tokens * i / texts);
    } else {
      for (std::int64_t i = 1; i <= sequences; ++i) offsets.push_back(batches.tokens * i / sequences);
    }
    largest.microbatch = Sequences(std::move(offsets));
    if (recipe.cuda_graphs && device.is_cuda()) {
      const BatchCapacity capacity = capacity_of_run(batches);
      largest.microbatch =
          largest.microbatch.with_capacity(capacity.rows, std::max(sequences, capacity.sequences));
    }
    return largest;
  }
};

bool copies_for_saving(const Recipe& recipe) {
  return recipe.checkpoint.enabled && recipe.checkpoint.is_async;
}

}  // namespace

std::int64_t host_copy_bytes(const Recipe& recipe, const Stack& model, const Dataset& dataset,
                             const RankSizes& ranks, Device device) {
  if (!device.is_cuda() || !copies_for_saving(recipe)) return 0;
  CostedRun run(recipe, model, dataset, ranks, device);
  std::int64_t most = 0;
  for (const int rank : run.first_ranks_of_stages()) most = std::max(most, run.costs.snapshot_bytes(rank));
  return most;
}

std::vector<MemoryItem> memory_of_run(const Recipe& recipe, const Stack& model, const Dataset& dataset,
                                      const RankSizes& ranks, Device device) {
  CostedRun run(recipe, model, dataset, ranks, device);
  std::vector<MemoryItem> items;
  int largest = 0;
  for (const int rank : run.first_ranks_of_stages()) {
    auto own = run.costs.memory(rank);
    if (total_bytes(own) <= total_bytes(items)) continue;
    items = std::move(own);
    largest = rank;
  }
  if (device.is_cuda()) {
    if (ranks.grid.ranks() == 1)
      items.back().bytes =
          std::max<std::int64_t>(0, planned_peak_bytes(model.setup(), planned_steps(recipe, run.load)) -
                                        total_bytes(items) + items.back().bytes);
    items.push_back({"workspace of cuBLAS at most", cuda::most_product_workspace, true});
    items.push_back({"CUDA's context and libraries about", cuda_context_bytes, true});
    if (ranks.grid.ranks() > 1 && exchanges_by_nccl(recipe))
      items.push_back({"NCCL's buffers about", run.costs.nccl_bytes(largest), true});
    return items;
  }
  const std::int64_t snapshot = copies_for_saving(recipe) ? run.costs.snapshot_bytes(largest) : 0;
  if (recipe.evaluation.squad_metrics && !recipe.validation_datasets.empty())
    items.back().bytes = std::max(items.back().bytes, answering_memory(recipe, model, run.batches, run.plan));
  // A tensor may lie in a larger block that was free; with a twelfth of the activations the sum was enough in
  // all runs measured. Where every step asks for the same sizes, few blocks wait for another size.
  const std::int64_t larger = items.back().bytes / 12;
  items.push_back({"copy for saving", snapshot});
  const std::int64_t tensors = total_bytes(items) + larger, most_kept = most_cpu_reserved(tensors) - tensors;
  const bool all_sizes =
      run.batches.vary || memory_limit().counts_untouched || recipe.evaluation.squad_metrics;
  items.push_back({"blocks kept for reuse", larger + (all_sizes ? most_kept : most_kept - tensors / 16)});
  items.push_back(
      {"prepared products about", cpu::onednn_plan_bytes(model.dtype(), memory_limit().counts_untouched) *
                                      prepared_products(recipe, model.setup(), ranks, run.batches,
                                                        run.steps.total_steps * run.steps.microbatches)});
  items.push_back({"libraries, data and threads about", besides_tensors(ranks.grid.ranks() > 1)});
  return items;
}

std::string memory_sentence(const std::vector<MemoryItem>& items, const RankSizes& sizes, Device device) {
  return cat("training needs about ", bytes_text(total_bytes(items)), " of ",
             device.is_cuda()                  ? "the device's memory"
             : memory_limit().counts_untouched ? "address space"
                                               : "memory",
             sizes.grid.ranks() > 1 ? " on each rank" : "", ": ", describe(items));
}

std::string memory_warning(const Recipe& recipe, const std::vector<MemoryItem>& items, DType dtype,
                           const RankSizes& sizes, Device device) {
  if (device.is_cuda()) {
    const cuda::DeviceDescription there = cuda::describe_device();
    if (total_bytes(items) <= there.memory_bytes) return {};
    return cat("that is more than there is: ", bytes_text(there.memory_bytes), " (", there.name, "). ",
               memory_advice(recipe, dtype, sizes));
  }
  const MemoryLimit limit = memory_limit();
  const std::string has = cat(bytes_text(limit.bytes), " (", limit.name, ")");
  const std::int64_t bytes = total_bytes(items), ranks = sizes.grid.ranks();
  if (bytes > limit.bytes)
    return cat("that is more than there is: ", has,
               limit.counts_untouched ? cat("; a limit of ", (bytes + 1023) / 1024, " KiB will do") : "",
               ". ", memory_advice(recipe, dtype, sizes));
  if (ranks > 1 && bytes > limit.bytes / ranks)
    return cat("that is more than there is here for ", ranks, " ranks: ", has,
               ", so they need several machines");
  return {};
}

std::string explain_memory(const Recipe& recipe, const ModelConfig& config, std::int64_t ranks,
                           Device device) noexcept try {
  const ModelSetup setup = recipe_setup(recipe, OpenedModel(recipe.model->path, config));
  const Stack model(setup, weight_dtype(recipe, config), Device::meta);
  const auto tokenizer = recipe_tokenizer(recipe, *recipe.dataset);
  const auto dataset = recipe_dataset(recipe, *recipe.dataset, tokenizer, &config, true);
  const RankSizes sizes = rank_sizes(recipe.distributed, ranks);
  return cat(memory_sentence(memory_of_run(recipe, model, *dataset, sizes, device), sizes, device), ". ",
             memory_advice(recipe, model.dtype(), sizes));
} catch (...) {
  return {};
}

}  // namespace nemocube
