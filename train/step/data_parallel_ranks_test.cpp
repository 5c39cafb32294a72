#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "model/test_models.h"
#include "parallel/comm/process_groups.h"
#include "parallel/data_parallel/data_parallel.h"
#include "tests/grids/history.h"
#include "tests/support/ranks.h"
#include "train/step/train_step.h"

using namespace nemocube;
using namespace nemocube::testing;

// Data-parallel training against one rank that gets the same microbatches.

namespace {

constexpr int steps = 10, microbatches_of_a_rank = 2;

struct Layout {
  std::int64_t replicas = 1;
  DataParallelOptions options;
  bool checkpointing = false;
};

struct Task {
  const char* pattern = "ME*-M";
  DType dtype = DType::f64;
  OptimizerOptions optimizer = {};
  bool packed = true;
};

ModelConfig config_of(const Task& task) {
  ModelConfig config = tiny_config(task.pattern);
  config.mamba.in_proj_bias = config.mamba.out_proj_bias = config.mlp.bias = config.moe.bias = true;
  return config;
}

std::size_t model_blocks(const Task& task) { return config_of(task).blocks.size(); }

// Microbatch m of the whole batch of a step. Some have labels for few tokens only, one rank's have none at
// all.
TokenBatch microbatch(const Task& task, int step, int m) {
  const std::uint64_t seed = static_cast<std::uint64_t>(1000 * step + m);
  const std::vector<std::int64_t> lengths =
      task.packed ? std::vector<std::int64_t>{7 + m % 3, 4} : std::vector<std::int64_t>{9 + m % 2};
  const TestBatch batch = random_batch(config_of(task), lengths, seed);
  if (m == 1 || step % 3 == m)
    for (std::int64_t t = m == 1 ? 0 : 3; t < batch.labels.numel(); ++t)
      batch.labels.data<std::int64_t>()[t] = -100;
  return {batch.ids, batch.labels, batch.sequences};
}

StepOptions step_options(int step) {
  StepOptions o;
  o.lr = 0.01 / (1 + step);
  o.weight_decay = 0.02;
  o.max_norm = 0.5;
  o.expert_bias_rate = 0.001;
  return o;
}

/// All ranks shard what `level` says.
ParallelPlan sharded(ZeroLevel level) {
  ParallelPlan plan;
  plan.grid.dp_shard = test_world().size();
  plan.data.level = level;
  return plan;
}

void add_auxiliary_losses(Stack& model) {
  for (MoeMixer* moe : model.moe_layers()) {
    moe->router().aux_loss_coef = 0.02;
    moe->router().z_loss_coef = 0.01;
  }
}

// `shake` changes each weight by up to this fraction of itself.
History on_one_rank(const Task& task, int ranks, bool checkpointing, double shake) {
  Stack model(config_of(task), task.dtype, Device::cpu);
  model.activation_checkpointing = checkpointing;
  initialise(model, 3);
  if (shake > 0)
    for (const Parameter& p : model.parameters().all()) {
      const Tensor noise = random_tensor(p.value.shape(), DType::f64, 4);
      auto values = p.value.to_vector(), by = noise.to_vector();
      for (std::size_t i = 0; i < values.size(); ++i) values[i] *= 1 + shake * std::clamp(by[i], -1.0, 1.0);
      p.value.copy_from(Tensor::from(values, p.value.shape()));
    }
  add_auxiliary_losses(model);
  ParallelModel parallel(model);
  Optimizer optimizer(model.parameters(), task.optimizer);
  History history;
  for (int s = 0; s < steps; ++s) {
    std::vector<TokenBatch> batches;
    for (int m = 0; m < ranks * microbatches_of_a_rank; ++m) batches.push_back(microbatch(task, s, m));
    history.steps.push_back(train_step(parallel, optimizer, batches, step_options(s)));
  }
  history.weights = weights_of(model);
  return history;
}

History one_rank(const Task& task, int ranks, bool checkpointing, double shake = 0) {
  return history_of_rank_0([&] { return on_one_rank(task, ranks, checkpointing, shake); });
}

History all_ranks(const Task& task, const Layout& layout) {
  World& world = test_world();
  const std::int64_t shards = world.size() / layout.replicas;
  ParallelPlan plan;
  plan.grid = {.dp_shard = shards, .dp_replicate = layout.replicas};
  plan.data = layout.options;
  const ProcessGroups groups(world, make_grid(plan.grid));
  Stack model(config_of(task), task.dtype, Device::meta);
  model.activation_checkpointing = layout.checkpointing;
  ParallelModel parallel(model, plan, groups, Device::cpu);
  initialise(model, 3);
  parallel.data().spread_values();
  add_auxiliary_losses(model);
  Optimizer optimizer(model.parameters(), task.optimizer);
  History history;
  for (int s = 0; s < steps; ++s) {
    std::vector<TokenBatch> batches;
    for (int m = 0; m < microbatches_of_a_rank; ++m)
      batches.push_back(microbatch(task, s, m * world.size() + world.rank()));
    history.steps.push_back(train_step(parallel, optimizer, batches, step_options(s)));
  }
  parallel.data().hold(DataParallel::Held::everything);
  history.weights = weights_of(model);
  parallel.data().let_go();
  return history;
}

void check_same(const History& got, const History& want, double tolerance, bool weights_too) {
  for (std::size_t s = 0; s < want.steps.size(); ++s) {
    CAPTURE(s);
    CHECK(got.steps[s].outcome == want.steps[s].outcome);
    CHECK(got.steps[s].label_tokens == want.steps[s].label_tokens);
    CHECK(std::abs(got.steps[s].loss / want.steps[s].loss - 1) < tolerance);
    CHECK(std::abs(got.steps[s].grad_norm / want.steps[s].grad_norm - 1) < tolerance);
    REQUIRE(got.steps[s].expert_counts.size() == want.steps[s].expert_counts.size());
    for (std::size_t i = 0; i < want.steps[s].expert_counts.size(); ++i)
      CHECK_BITS(got.steps[s].expert_counts[i], want.steps[s].expert_counts[i]);
    REQUIRE(got.steps[s].auxiliary_losses.size() == want.steps[s].auxiliary_losses.size());
    for (std::size_t i = 0; i < want.steps[s].auxiliary_losses.size(); ++i)
      CHECK(std::abs(got.steps[s].auxiliary_losses[i].second / want.steps[s].auxiliary_losses[i].second - 1) <
            tolerance);
  }
  if (!weights_too) return;
  double worst = 0;
  for (const auto& [name, values] : want.weights) {
    const auto a = got.weights.at(name).to_vector(), b = values.to_vector();
    REQUIRE(a.size() == b.size());
    for (std::size_t e = 0; e < b.size(); ++e) worst = std::max(worst, std::abs(a[e] - b[e]));
  }
  CHECK(worst < tolerance);
}

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const ZeroLevel level :
       {ZeroLevel::none, ZeroLevel::optimizer, ZeroLevel::gradients, ZeroLevel::parameters})
    for (const bool overlap : {true, false}) {
      Layout layout;
      layout.options.level = level;
      layout.options.overlap = overlap;
      layout.options.reduce_last_only = overlap || level < ZeroLevel::gradients;
      layout.options.reshard_after_forward = overlap;
      layout.checkpointing = overlap;
      all.push_back(layout);
      if (test_world().size() % 2 == 0 && test_world().size() > 2 && level != ZeroLevel::none) {
        layout.replicas = 2;
        layout.checkpointing = !overlap;
        all.push_back(layout);
      }
    }
  return all;
}

}  // namespace

// The experts that tokens choose have a margin: a thousand times the roundings that layouts differ by moves
// none.
void check_margin(const Task& task, int ranks, const History& history, double shake) {
  const History shaken = one_rank(task, ranks, false, shake);
  for (std::size_t s = 0; s < history.steps.size(); ++s)
    for (std::size_t i = 0; i < history.steps[s].expert_counts.size(); ++i)
      CHECK_BITS(shaken.steps[s].expert_counts[i], history.steps[s].expert_counts[i]);
}

TEST_CASE("data parallel: ten steps on every level are those of one rank, in f64" * on_ranks({3, 4})) {
  const Task sgd{.optimizer = {.kind = OptimizerKind::sgd, .momentum = 0.9}};
  const Task adamw{.pattern = "M-E*", .packed = false};
  const int ranks = test_world().size();
  const History want_sgd = one_rank(sgd, ranks, false), want_adamw = one_rank(adamw, ranks, false);
  check_margin(sgd, ranks, want_sgd, 1e-11);
  check_margin(adamw, ranks, want_adamw, 1e-11);
  for (const Layout& layout : layouts()) {
    CAPTURE(static_cast<int>(layout.options.level));
    CAPTURE(layout.options.overlap);
    CAPTURE(layout.replicas);
    check_same(all_ranks(sgd, layout), want_sgd, 1e-12, true);
    check_same(all_ranks(adamw, layout), want_adamw, 1e-12, false);
  }
}

TEST_CASE("data parallel: ten steps in f32 and bf16; the same layout gives the same bits" *
          on_ranks({2, 4})) {
  const int ranks = test_world().size();
  Task task{.dtype = DType::f32};
  const History want = one_rank(task, ranks, true);
  for (const Layout& layout : layouts()) {
    if (!layout.options.overlap) continue;
    CAPTURE(static_cast<int>(layout.options.level));
    const History first = all_ranks(task, layout), again = all_ranks(task, layout);
    check_same(first, want, 1e-5, false);
    for (const auto& [name, values] : first.weights) CHECK_BITS(values, again.weights.at(name));
    for (std::size_t s = 0; s < first.steps.size(); ++s) {
      CHECK(first.steps[s].loss == again.steps[s].loss);
      CHECK(first.steps[s].grad_norm == again.steps[s].grad_norm);
    }
  }
  // Levels differ in where things lie, not in how they are added.
  task.dtype = DType::bf16;
  std::optional<History> plain;
  for (const Layout& layout : layouts()) {
    if (!layout.options.overlap || layout.replicas > 1) continue;
    const History run = all_ranks(task, layout);
    if (!plain) plain = run;
    for (const auto& [name, values] : run.weights) CHECK_BITS(values, plain->weights.at(name));
  }
}

TEST_CASE("data parallel: a batch without labels, and one that is not finite, change nothing on any rank") {
  const Task task;
  World& world = test_world();
  for (const ZeroLevel level : {ZeroLevel::none, ZeroLevel::optimizer, ZeroLevel::parameters}) {
    const ParallelPlan plan = sharded(level);
    const ProcessGroups groups(world, make_grid(plan.grid));
    Stack model(config_of(task), task.dtype, Device::meta);
    ParallelModel parallel(model, plan, groups, Device::cpu);
    initialise(model, 3);
    parallel.data().spread_values();
    Optimizer optimizer(model.parameters(), {});
    const auto kept = [&] {
      std::vector<Tensor> all;
      for (const Parameter& p : model.parameters().all()) all.push_back(p.own.clone());
      for (const StateTensor& t : optimizer.state()) all.push_back(t.value.clone());
      return all;
    };
    std::vector<TokenBatch> batches{microbatch(task, 0, 0)};
    const Tensor none = batches[0].labels.clone();
    none.fill(-100);
    batches[0] = TokenBatch(batches[0].ids, none, batches[0].sequences);
    CHECK(train_step(parallel, optimizer, batches, step_options(0)).outcome == StepOutcome::no_labels);
    batches[0] = microbatch(task, 0, 0);
    if (world.rank() == world.size() - 1) {
      // One rank's weights are broken: all ranks skip.
      for (Parameter& p : model.parameters().all())
        if (p.own.numel() > 0 && p.name.ends_with("lm_head.weight")) p.own.fill(INFINITY);
    }
    const std::vector<Tensor> before = kept();
    const StepResult bad = train_step(parallel, optimizer, batches, step_options(0));
    CHECK(bad.outcome == StepOutcome::non_finite);
    CHECK(bad.not_finite == "");
    CHECK(optimizer.steps() == 0);
    const std::vector<Tensor> after = kept();
    for (std::size_t i = 0; i < before.size(); ++i) CHECK_BITS(after[i], before[i]);
  }
}

TEST_CASE("data parallel: all ranks name the parameter that one rank's update made not finite") {
  const Task task;
  World& world = test_world();
  const ParallelPlan plan = sharded(ZeroLevel::none);
  const ProcessGroups groups(world, make_grid(plan.grid));
  Stack model(config_of(task), task.dtype, Device::meta);
  ParallelModel parallel(model, plan, groups, Device::cpu);
  initialise(model, 3);
  Optimizer optimizer(model.parameters(), {});
  if (world.rank() == world.size() - 1)
    for (const StateTensor& t : optimizer.state())
      if (t.name == "exp_avg.backbone.norm_f.weight") t.value.fill(INFINITY);
  const std::vector<TokenBatch> batches{microbatch(task, 0, 0)};
  const StepResult lost = train_step(parallel, optimizer, batches, step_options(0));
  CHECK(lost.outcome == StepOutcome::updated);
  CHECK(lost.not_finite == "backbone.norm_f.weight");
}

TEST_CASE("data parallel: activation checkpointing gathers no weights more often") {
  World& world = test_world();
  const Task task;
  std::vector<CommStats> gathers, reductions;
  for (const bool checkpointing : {false, true}) {
    const ParallelPlan plan = sharded(ZeroLevel::parameters);
    const ProcessGroups groups(world, make_grid(plan.grid));
    Stack model(config_of(task), task.dtype, Device::meta);
    model.activation_checkpointing = checkpointing;
    ParallelModel parallel(model, plan, groups, Device::cpu);
    initialise(model, 3);
    Optimizer optimizer(model.parameters(), {});
    const std::vector<TokenBatch> batches{microbatch(task, 0, world.rank())};
    train_step(parallel, optimizer, batches, step_options(0));
    gathers.push_back(groups[Group::dp_shard_cp].stats(Operation::all_gather));
    reductions.push_back(groups[Group::dp_shard_cp].stats(Operation::reduce_scatter));
  }
  CHECK(gathers[0].calls == gathers[1].calls);
  CHECK(gathers[0].bytes_sent == gathers[1].bytes_sent);
  CHECK(reductions[0].calls == reductions[1].calls);
  // The root once, the last block once, every other block for each pass.
  const auto blocks = static_cast<std::int64_t>(model_blocks(task));
  if (world.size() > 1) CHECK(gathers[0].calls == 1 + 1 + 2 * (blocks - 1));
}
