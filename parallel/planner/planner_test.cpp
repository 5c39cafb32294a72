#include <doctest/doctest.h>

#include "model/test_configs.h"
#include "parallel/planner/step_traffic.h"
#include "parallel/schedule/simulate.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

RankTraffic::Sum sum_of(const RankTraffic& traffic, Group group, Operation operation) {
  const auto found = traffic.sums().find({group, operation});
  return found == traffic.sums().end() ? RankTraffic::Sum{} : found->second;
}

ModelConfig small_config(const char* pattern) {
  ModelConfig c = with_experts({pattern, 12, 4, 2, 14, 4, 3, 5, 4}, {6, 2, 8, 10});
  c.vocab_size = 23;
  c.attention.head_dim = 4;
  c.mamba.n_groups = 2;
  return c;
}

ParallelPlan plan_of(const GridSizes& grid, ZeroLevel level = ZeroLevel::none) {
  ParallelPlan plan;
  plan.grid = grid;
  plan.data.level = level;
  return plan;
}

StepLoad load_of(std::int64_t tokens, std::int64_t microbatches = 1) {
  StepLoad load;
  load.microbatch = Sequences::uniform(1, tokens);
  load.microbatches = microbatches;
  return load;
}

}  // namespace

TEST_CASE("planner: bytes of each collective are those of its definition") {
  const PlannedGroups groups(make_grid({.tp = 3, .dp_shard = 2}));
  std::int64_t bytes = 0;
  for (int rank = 0; rank < 3; ++rank) {
    RankTraffic traffic(groups, rank);
    traffic.all_reduce(Group::tp, 10, DType::f32);    // 40 bytes go to two others
    traffic.all_reduce(Group::tp, 2000, DType::f32);  // parts of 667, 667 and 666 elements
    const std::int64_t own = rank < 2 ? 667 * 4 : 666 * 4;
    CHECK(sum_of(traffic, Group::tp, Operation::all_reduce) ==
          RankTraffic::Sum{2, 80 + (8000 - own) + 2 * own});
    bytes += sum_of(traffic, Group::tp, Operation::all_reduce).bytes - 80;
  }
  CHECK(bytes == 2 * 2 * 8000);

  RankTraffic traffic(groups, 4);  // tp 1, dp 1
  traffic.all_gather(Group::tp, 5, DType::bf16, 3);
  traffic.reduce_scatter(Group::world, 5, 30, DType::f64);
  traffic.all_to_all(Group::dp, 7, DType::i32, 2);
  traffic.exchange(Group::tp, 7, DType::f32);
  traffic.all_reduce(Group::cp, 1000, DType::f32);  // a group of one rank
  CHECK(sum_of(traffic, Group::tp, Operation::all_gather) == RankTraffic::Sum{3, 3 * 2 * 10});
  CHECK(sum_of(traffic, Group::world, Operation::reduce_scatter) == RankTraffic::Sum{1, 25 * 8});
  CHECK(sum_of(traffic, Group::dp, Operation::all_to_all) == RankTraffic::Sum{2, 2 * 28});
  CHECK(sum_of(traffic, Group::tp, Operation::exchange) == RankTraffic::Sum{1, 28});
  CHECK(traffic.sums().size() == 4);
  CHECK_THROWS_AS(traffic.all_gather(Group::grid, 1, DType::f32), std::logic_error);
}

TEST_CASE("planner: buffers of a rank have the sizes of its cuts") {
  ModelParts parts(small_config("-*"), plan_of({.tp = 2, .dp_shard = 3}, ZeroLevel::parameters), DType::bf16);
  const LocalParameters& local = parts.of({.tp = 1});
  CHECK(local.blocks.size() == 2);
  REQUIRE(local.root.flats.size() == 1);
  // Embeddings of 11 of 23 tokens, two norms, the final norm, lm_head: each starts at a multiple of 64.
  CHECK(local.root.flats[0].size == 3 * 192);  // 192 + 64 + 64 + 64 + 192 = 576
  const LocalFlat& mlp = local.blocks.at(0).flats.at(0);
  CHECK(mlp.pieces[1].start == 128);  // after 7 of 14 channels, 84 elements
  CHECK(mlp.shard == 128);            // 256 of two pieces, 384 with whole cache lines for three ranks
  CHECK(mlp.size == 384);
  CHECK(local.elements == 2 * 11 * 12 + 3 * 12 + 2 * 84 + 12 * (8 + 4 + 4 + 8));
}

TEST_CASE("planner: how often a block is gathered and reduced") {
  ParallelPlan plan = plan_of({.dp_shard = 2}, ZeroLevel::parameters);
  const ModelConfig config = small_config("-E-");
  ModelParts parts(config, plan, DType::f32);
  const LocalParameters& local = parts.of({});
  const auto moves = [&](std::int64_t microbatches) {
    const Schedule schedule = plan.pipeline.schedule(1, microbatches);
    return count_moves(config, local, make_programs(schedule, simulate(schedule)).at(0), plan);
  };
  // The last block stays between forward and backward.
  CHECK(moves(1).at(0).gathers == 2);
  CHECK(moves(1).at(1).gathers == 2);
  CHECK(moves(1).at(2).gathers == 1);
  // After the first of two backward passes everything stays until the next forward pass.
  CHECK(moves(2).at(0).gathers == 3);
  CHECK(moves(2).at(2).gathers == 1);
  CHECK(moves(2).at(0).reductions == 1);
  plan.data.reduce_last_only = false;
  CHECK(moves(2).at(0).gathers == 4);
  CHECK(moves(2).at(2).gathers == 2);
  CHECK(moves(2).at(0).reductions == 2);
  plan.data.reshard_experts_after_forward = false;
  CHECK(moves(2).at(1).gathers == 4);
  CHECK(moves(2).at(1).expert_gathers == 2);
}

TEST_CASE("planner: what tensor-parallel ranks send") {
  constexpr std::int64_t rows = 7, message = rows * 12 * 4;
  ParallelPlan plan = plan_of({.tp = 2});
  {
    StepTraffic step(small_config("-"), plan, load_of(rows, 3));
    // For each microbatch: embeddings, the block there and back, head back; the loss's 7 and 14 numbers.
    CHECK(sum_of(step.of(0), Group::tp, Operation::all_reduce) ==
          RankTraffic::Sum{3 * 6, 3 * (4 * message + 28 + 56)});
  }
  plan.sequence_parallel = true;  // rank 0 has 4 rows, rank 1 has 3
  StepTraffic step(small_config("-"), plan, load_of(rows));
  const RankTraffic last = step.of(1);
  // Into block and head rows are gathered, out of embeddings and block their gradients are.
  CHECK(sum_of(last, Group::tp, Operation::all_gather) == RankTraffic::Sum{4, 4 * 3 * 12 * 4});
  CHECK(sum_of(last, Group::tp, Operation::reduce_scatter) == RankTraffic::Sum{4, 4 * 4 * 12 * 4});
  // Besides the loss, the norms' gradients: two of 12 elements in the root.
  CHECK(sum_of(last, Group::tp, Operation::all_reduce) == RankTraffic::Sum{3, 28 + 56 + 2 * 12 * 4});
}

TEST_CASE("planner: what expert-parallel ranks send") {
  ParallelPlan plan = plan_of({.dp_shard = 2, .ep = 2});
  StepTraffic step(small_config("E"), plan, load_of(6));
  // 12 choices of 6 tokens go round 6 experts: 6 stay, 6 leave, 6 come. Rows and results, there and back.
  CHECK(sum_of(step.of(0), Group::ep, Operation::all_to_all) == RankTraffic::Sum{4, 4 * 6 * 12 * 4});
  CHECK(sum_of(step.of(0), Group::tp_ep, Operation::all_gather) == RankTraffic::Sum{1, 6 * 8});
  plan.dispatcher = DispatcherKind::allgather;
  StepTraffic gathering(small_config("E"), plan, load_of(6));
  CHECK(sum_of(gathering.of(0), Group::tp_ep, Operation::all_gather) ==
        RankTraffic::Sum{5, 8 + 6 * 2 * 4 + 2 * 6 * 12 * 4 + 6 * 2 * 4});
  CHECK(sum_of(gathering.of(0), Group::tp_ep, Operation::reduce_scatter) ==
        RankTraffic::Sum{3, 2 * 6 * 12 * 4 + 6 * 2 * 4});
}
