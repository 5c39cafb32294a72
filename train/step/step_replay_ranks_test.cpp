#include <doctest/doctest.h>

#include <cmath>
#include <optional>

#include "core/cuda/runtime.h"
#include "model/test_models.h"
#include "parallel/comm/process_groups.h"
#include "tests/grids/grid_cases.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/ranks.h"
#include "train/step/train_step.h"

using namespace nemocube;
using namespace nemocube::testing;

// Steps of ranks by CUDA graphs against the same steps without.

namespace {

constexpr int steps = 3;

// One block of each kind, with few heads and long chunks: the software GPU spends most of a step in the
// scans.
ModelConfig small_model() {
  ModelConfig config = grid_model();
  config.blocks = parse_pattern("ME*-").blocks;
  config.mamba.num_heads = 2;
  config.mamba.chunk_size = 8;
  return config;
}

struct Ranks {
  Ranks(const ParallelPlan& p, int of_step)
      : plan(p),
        microbatches(of_step),
        place(place_of(plan.grid, test_world().rank())),
        groups(test_world(), make_grid(plan.grid)),
        model(small_model(), DType::bf16, Device::meta, part_of(plan, small_model(), place)),
        parallel(model, plan, groups, cuda_device()) {
    initialise(model, 3);
    parallel.data().spread_values();
    for (MoeMixer* moe : model.moe_layers()) moe->router().aux_loss_coef = 0.02;
    optimizer.emplace(model.parameters(), OptimizerOptions{});
  }

  StepResult step(int number, StepReplay* replay) {
    std::vector<TokenBatch> batches;
    for (int m = 0; m < microbatches; ++m) {
      const auto seed =
          static_cast<std::uint64_t>(100 * number + 10 * m) + static_cast<std::uint64_t>(place.dp(plan.grid));
      const auto extra = static_cast<std::int64_t>(seed % 3);
      const TestBatch batch = random_batch(model.config(), {7 + extra, 0, 4}, seed);
      batches.push_back(TokenBatch(batch.ids, batch.labels, batch.sequences).with_capacity(16, 4, 16));
    }
    StepOptions o;
    o.lr = 0.01 / (1 + number);
    o.weight_decay = 0.02;
    o.max_norm = 0.5;
    o.expert_bias_rate = 0.001;
    o.replay = replay;
    return train_step(parallel, *optimizer, batches, o);
  }

  ParallelPlan plan;
  int microbatches;  // of a step
  GridPlace place;
  ProcessGroups groups;
  Stack model;
  ParallelModel parallel;
  std::optional<Optimizer> optimizer;
};

/// Compares steps; returns the kernels and products that graphs ran in the last one.
std::int64_t compare_steps(const ParallelPlan& plan, int microbatches = 3) {
  std::vector<StepResult> results;
  std::int64_t in_graphs = 0;
  Ranks with(plan, microbatches);
  {
    StepReplay replay(with.parallel);
    for (int s = 0; s < steps; ++s) {
      in_graphs = replay.graphs().launches_in_graphs();
      results.push_back(with.step(s, &replay));
      in_graphs = replay.graphs().launches_in_graphs() - in_graphs;
    }
  }
  Ranks without(plan, microbatches);
  for (int s = 0; s < steps; ++s) {
    CAPTURE(s);
    const StepResult &got = results[static_cast<std::size_t>(s)], want = without.step(s, nullptr);
    CHECK(got.outcome == StepOutcome::updated);
    CHECK(got.loss == want.loss);
    CHECK(got.grad_norm == want.grad_norm);
    CHECK(got.auxiliary_losses == want.auxiliary_losses);
  }
  const std::vector<Parameter>&a = with.model.parameters().all(), &b = without.model.parameters().all();
  for (std::size_t i = 0; i < a.size(); ++i) CHECK_BITS(a[i].own.to(Device::cpu), b[i].own.to(Device::cpu));
  return in_graphs;
}

}  // namespace

TEST_CASE("step graphs: ranks have the bits of steps without graphs, with their collectives in the graphs" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const std::int64_t ranks = test_world().size();
  const bool nccl = ranks == 1 || cuda::device_count() >= ranks;
  const auto data_parallel = [&](ZeroLevel level, bool last_only) {
    ParallelPlan plan;
    plan.grid.dp_shard = ranks;
    plan.data.level = level;
    plan.data.reduce_last_only = last_only;
    return compare_steps(plan);
  };
  const auto tensor_parallel = [&](bool sequence_parallel) {
    ParallelPlan plan;
    plan.grid.tp = ranks;
    plan.data.level = ZeroLevel::none;
    plan.sequence_parallel = sequence_parallel;
    return compare_steps(plan);
  };
  const auto pipeline = [&](ScheduleKind schedule, std::int64_t chunks) {
    return compare_steps(
        plan_of({.grid = {.pp = ranks}, .schedule = schedule, .chunks = chunks}, small_model()), 4);
  };
  // Ranks that share a device send messages of the host, in passes that reduce gradients and in the update. A
  // pass of this model has about 147 launches: more than this many are those of all three passes of a step.
  const std::int64_t all = 3 * 130;
  CHECK((data_parallel(ZeroLevel::none, true) > all) == nccl);
  CHECK((data_parallel(ZeroLevel::optimizer, true) > all) == nccl);
  CHECK((data_parallel(ZeroLevel::gradients, false) > all) == nccl);
  CHECK((data_parallel(ZeroLevel::parameters, true) > all) == nccl);
  CHECK((tensor_parallel(true) > all) == nccl);
  if (ranks == 1) return;
  CHECK((pipeline(ScheduleKind::one_f_one_b, 1) > 0) == nccl);
  CHECK((pipeline(ScheduleKind::zbv, 2) > 0) == nccl);
}

TEST_CASE("step graphs: ranks whose steps cannot be captured run them as without graphs" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const std::int64_t ranks = test_world().size();
  if (ranks == 1) return;
  ParallelPlan experts, context;
  experts.grid.dp_shard = experts.grid.ep = ranks;
  experts.dispatcher = DispatcherKind::alltoall;
  CHECK(compare_steps(experts) == 0);
  experts.data.level = ZeroLevel::none;
  CHECK(compare_steps(experts) < 100);  // the update alone
  context.grid.cp = ranks;
  context.data.level = ZeroLevel::none;
  CHECK(compare_steps(context) == 0);
}

TEST_CASE(
    "step graphs: work that one rank cannot capture runs on all as without graphs, its calls in their order" *
    doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  Communicator& all = test_world().communicator();
  const bool last = all.rank() == all.size() - 1;
  for (const bool checked : {false, true}) {
    CAPTURE(checked);
    test_world().set_options({.timeout_seconds = 60, .check_collectives = checked});
    ParameterStore parameters(grid_model(), DType::f32, Device::meta);
    GraphCache graphs(parameters, all);
    const Tensor x = Tensor::empty({5}, DType::f32, cuda_device());
    x.fill(1);
    const auto work = [&] {
      if (last) cuda::synchronize();
      all.all_reduce(x);
      all.all_reduce(x);
    };
    for (int i = 0; i < 4; ++i) graphs.run("two sums", {}, work);
    CHECK(graphs.launches_in_graphs() == 0);
    for (const double value : x.to_vector()) CHECK(value == std::pow(all.size(), 8));
    all.host_barrier();
  }
  test_world().set_options({.timeout_seconds = 60});
}
