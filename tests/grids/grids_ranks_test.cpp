#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include "core/log.h"
#include "model/test_models.h"
#include "tests/grids/grid_cases.h"
#include "tests/support/ranks.h"
#include "train/step/train_step.h"

using namespace nemocube;
using namespace nemocube::testing;

// Ten steps on process grids against one rank that gets the same microbatches.

namespace {

constexpr int steps = 10, microbatches = 8;  // of a step, over all replicas

// Microbatch m of a step. One has labels for a single token only.
TokenBatch microbatch(int step, int m, bool packed) {
  const auto seed = static_cast<std::uint64_t>(1000 * step + m);
  const std::vector<std::int64_t> lengths =
      packed ? std::vector<std::int64_t>{9 + m % 3, 1, 4} : std::vector<std::int64_t>{13 + m % 2};
  const TestBatch batch = random_batch(grid_model(), lengths, seed);
  if (m == step % microbatches)
    for (std::int64_t t = 1; t < batch.labels.numel(); ++t) batch.labels.data<std::int64_t>()[t] = -100;
  return {batch.ids, batch.labels, batch.sequences};
}

StepOptions step_options(int step, ParallelModel* parallel) {
  StepOptions o;
  o.lr = 0.02 / (1 + step);
  o.weight_decay = 0.02;
  o.max_norm = 0.5;
  o.expert_bias_rate = 0.001;
  o.parallel = parallel;
  return o;
}

OptimizerOptions optimizer_options() { return {.kind = OptimizerKind::sgd, .momentum = 0.9}; }

// The global loss depends on which microbatches are under way at the same time, so several replicas do without.
void add_auxiliary_losses(NemotronH& model, bool global) {
  for (MoeMixer* moe : model.moe_layers()) {
    moe->router().aux_loss_coef = 0.02;
    moe->router().seq_aux_loss_coef = 0.03;
    if (global) moe->router().global_aux_loss_coef = 0.01;
    moe->router().z_loss_coef = 0.01;
  }
}

struct History {
  std::vector<StepResult> steps;
  std::map<std::string, std::vector<double>> weights;  // of the whole model at the end
};

struct Task {
  DType dtype;
  bool packed, global_loss;
  auto operator<=>(const Task&) const = default;
};

History on_one_rank(const Task& task) {
  NemotronH model(grid_model(), task.dtype, Device::cpu);
  initialise(model, 3);
  add_auxiliary_losses(model, task.global_loss);
  Optimizer optimizer(model.parameters(), optimizer_options());
  History history;
  for (int s = 0; s < steps; ++s) {
    std::vector<TokenBatch> batches;
    for (int m = 0; m < microbatches; ++m) batches.push_back(microbatch(s, m, task.packed));
    history.steps.push_back(train_step(model, optimizer, batches, step_options(s, nullptr)));
  }
  for (const Parameter& p : model.parameters().all()) history.weights[p.name] = p.value.to_vector();
  return history;
}

/// Computed once for each kind.
const History& reference(const Task& task) {
  static std::map<Task, History> known;
  const auto found = known.find(task);
  return found != known.end() ? found->second : known.emplace(task, on_one_rank(task)).first->second;
}

/// The largest difference between what this rank owns and the weights of one rank.
double weight_error(const NemotronH& model, const History& want) {
  double worst = 0;
  for (const Parameter& p : model.parameters().all()) {
    const std::vector<double> own = p.own.to_vector();
    const std::vector<double>& whole = want.weights.at(p.name);
    p.shard.for_each_run([&](std::int64_t local, std::int64_t global, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i)
        worst = std::max(worst, std::abs(own[static_cast<std::size_t>(local + i)] -
                                         whole[static_cast<std::size_t>(global + i)]));
    });
  }
  return worst;
}

double relative(double got, double want) { return std::abs(got / want - 1); }

void compare_with_one_rank(const GridCase& c, DType dtype, double tolerance) {
  const Task task{dtype, c.packed, c.grid.dp() == 1};
  const History& want = reference(task);
  World& world = test_world();
  const ParallelPlan plan = plan_of(c, grid_model());
  const GridPlace place = place_of(plan.grid, world.rank());
  const ProcessGroups groups(world, make_grid(plan.grid), used_groups(plan, grid_model()));
  NemotronH model(grid_model(), dtype, Device::meta, part_of(plan, grid_model(), place));
  ParallelModel parallel(model, plan, groups, Device::cpu);
  model.activation_checkpointing = c.checkpointing;
  initialise(model, 3);
  parallel.data().spread_values();
  add_auxiliary_losses(model, task.global_loss);
  Optimizer optimizer(model.parameters(), optimizer_options());
  const int dp = static_cast<int>(plan.grid.dp());
  for (int s = 0; s < steps; ++s) {
    CAPTURE(s);
    std::vector<TokenBatch> batches;
    for (int m = 0; m < microbatches; m += dp)
      batches.push_back(microbatch(s, m + static_cast<int>(place.dp(plan.grid)), c.packed));
    const StepResult got = train_step(model, optimizer, batches, step_options(s, &parallel));
    const StepResult& one = want.steps[static_cast<std::size_t>(s)];
    CHECK(got.outcome == one.outcome);
    CHECK(got.label_tokens == one.label_tokens);
    CHECK(relative(got.loss, one.loss) < tolerance);
    CHECK(relative(got.grad_norm, one.grad_norm) < tolerance);
    REQUIRE(got.auxiliary_losses.size() == one.auxiliary_losses.size());
    for (std::size_t i = 0; i < one.auxiliary_losses.size(); ++i) {
      CAPTURE(one.auxiliary_losses[i].first);
      CHECK(relative(got.auxiliary_losses[i].second, one.auxiliary_losses[i].second) < tolerance);
    }
    REQUIRE(got.expert_counts.size() == one.expert_counts.size());
    for (std::size_t i = 0; i < one.expert_counts.size(); ++i)
      CHECK_BITS(got.expert_counts[i], one.expert_counts[i]);
  }
  CHECK(weight_error(model, want) < tolerance);
}

}  // namespace

TEST_CASE("grids: ten steps on every grid are those of one rank") {
  const char* wish = std::getenv("NEMOCUBE_GRIDS");
  const auto cases = grid_cases(test_world().size(), wish ? wish : "");
  REQUIRE(!cases.empty());
  for (const GridCase& c : cases) {
    CAPTURE(name_of(c));
    log_info("grid: ", name_of(c));
    compare_with_one_rank(c, DType::f64, 1e-12);
    compare_with_one_rank(c, DType::f32, 1e-5);
  }
}
