#include "train/run/benchmark.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "core/allocator.h"
#include "core/log.h"
#include "core/profile.h"
#include "data/hf/families/family.h"
#include "model/flops.h"
#include "train/assemble/from_recipe.h"
#include "train/assemble/group_rule.h"
#include "train/assemble/run_batches.h"
#include "train/cost/memory_report.h"
#include "train/datasets/recipe_datasets.h"
#include "train/ranks/inputs.h"
#include "train/recipe/files.h"
#include "train/run/step_flops.h"
#include "train/step/train_step.h"

namespace nemocube {
namespace {

using BenchmarkClock = std::chrono::steady_clock;

double seconds_since(BenchmarkClock::time_point start) {
  return std::chrono::duration<double>(BenchmarkClock::now() - start).count();
}

/// Everything that lives from the first step of a benchmark to the last.
class Benchmark {
 public:
  Benchmark(const Recipe& recipe, const ModelConfig& config, const ParallelSettings& settings, World& world,
            Device device)
      : recipe_(recipe),
        start_(BenchmarkClock::now()),
        ranks_(world, recipe.distributed, settings, device),
        loaded_(recipe_model(recipe, config, ranks_)),
        loader_(recipe_dataset(recipe, *recipe.dataset, std::nullopt, &loaded_.model->config(), true),
                loader_options(recipe, ranks_.dp_rank(), ranks_.dp_size())),
        microbatches_(microbatches_of_step(recipe, ranks_.dp_size())),
        optimizer_(loaded_.model->parameters(), optimizer_options(*recipe.optimizer),
                   group_rule(*recipe.optimizer, loaded_.model->parameters())) {
    check_vocabulary(*recipe.dataset, std::nullopt, loader_.dataset(), loaded_.model->config().vocab_size);
    ranks_.check_pipeline_fill(*loaded_.parallel, microbatches_);
    if (recipe.cuda_graphs && device.is_cuda()) {
      replay_.emplace(*loaded_.parallel);
      capacity_ = capacity_of_run(
          batches_of_run(loader_.dataset(), loader_options(recipe, ranks_.dp_rank(), ranks_.dp_size()), 1));
    }
    if (ranks_.several()) log_info(ranks_.text(recipe.kernels));
    ranks_.tell_tensor_plan(loaded_.model->setup());
    const auto& s = recipe.step_scheduler;
    result_.steps = s.max_steps.value();
    result_.warmup_steps = recipe.benchmark.warmup_steps->value_or(0);
    result_.ranks = world.size();
    result_.global_batch = s.global_batch_size;
    result_.local_batch = s.local_batch_size;
    result_.sequence_length = loader_.dataset().content_length(0);
    result_.peak_tflops = recipe.mfu.peak_tflops;
    result_.automodel_flops =
        family_of(loaded_.model->config())
            .automodel_step_flops(loaded_.model->setup(), s.global_batch_size, result_.sequence_length);
    options_.lr = recipe.optimizer->lr;
    options_.weight_decay = recipe.optimizer->weight_decay;
    options_.max_norm = recipe.clip_grad_norm.max_norm;
    options_.expert_bias_rate = recipe.model->moe.expert_bias_update_rate;
    options_.kernels = &recipe.kernels;
    options_.replay = replay_ ? &*replay_ : nullptr;
    result_.setup_seconds = seconds_since(start_);
  }

  BenchmarkResult run(const std::function<void(const BenchmarkResult&)>& on_step) {
    for (std::int64_t i = 0; i < result_.steps; ++i) {
      one_step(i);
      if (ranks_.first()) on_step(result_);
    }
    return result_;
  }

 private:
  void one_step(std::int64_t step) {
    std::vector<TokenBatch> batches =
        batches_of_step(recipe_, std::nullopt, loader_.next_group(microbatches_));
    if (replay_)
      for (TokenBatch& tokens : batches) tokens = capacity_.fit(std::move(tokens));
    if (step == 0)
      result_.flops = loaded_.parallel->sum(
          loaded_.parallel->first_of_replica() ? step_flops(loaded_.model->setup(), batches) : 0);
    const auto start = BenchmarkClock::now();
    const StepResult r = train_step(*loaded_.parallel, optimizer_, batches, options_);
    const auto own = std::chrono::duration_cast<std::chrono::nanoseconds>(BenchmarkClock::now() - start);
    require(r.not_finite.empty(), "step ", step, ": the update wrote numbers that are not finite into '",
            r.not_finite, "'; lower optimizer.lr");
    result_.step_seconds.push_back(1e-9 * static_cast<double>(ranks_.largest(own.count())));
    result_.losses.push_back(r.loss);
    result_.skipped_steps += r.outcome != StepOutcome::updated;
    result_.peak_bytes = ranks_.largest(allocator(loaded_.model->device()).stats().peak_bytes);
  }

  const Recipe& recipe_;
  BenchmarkClock::time_point start_;
  RunRanks ranks_;
  LoadedModel loaded_;
  Loader loader_;
  std::int64_t microbatches_;
  Optimizer optimizer_;
  std::optional<StepReplay> replay_;  // where steps are to use CUDA graphs
  BatchCapacity capacity_;            // of microbatches then
  StepOptions options_;
  BenchmarkResult result_;
};

double sum_of_range(const std::vector<double>& values, std::int64_t begin, std::int64_t end) {
  const auto size = static_cast<std::int64_t>(values.size());
  return std::accumulate(values.begin() + std::min(begin, size), values.begin() + std::min(end, size), 0.0);
}

}  // namespace

double BenchmarkResult::warmup_seconds() const { return sum_of_range(step_seconds, 0, warmup_steps); }
double BenchmarkResult::training_seconds() const { return sum_of_range(step_seconds, warmup_steps, steps); }
double BenchmarkResult::mean_seconds() const {
  return training_seconds() / static_cast<double>(steps - warmup_steps);
}
double BenchmarkResult::tokens() const { return static_cast<double>(global_batch * sequence_length); }

double mfu_percent(double flops, std::int64_t ranks, double seconds, double peak_tflops) {
  return flops / (static_cast<double>(ranks) * seconds * peak_tflops * 1e12) * 100;
}

BenchmarkResult run_benchmark(const Recipe& recipe, const ParallelSettings& settings, World& world,
                              Device device, const std::function<void(const BenchmarkResult&)>& on_step) {
  check_kernel_choice(recipe.kernels, device);
  want_same_inputs(world, recipe, RecipeUse::train);  // before the ranks form groups
  const ModelConfig config = config_of_model(recipe);
  try {
    return Benchmark(recipe, config, settings, world, device).run(on_step);
  } catch (const OutOfMemory& e) {
    const std::string need = explain_memory(recipe, config, world.size(), device);
    throw OutOfMemory(cat(e.what(), need.empty() ? "" : "; ", need));
  }
}

}  // namespace nemocube
