#include "parallel/parallel_model/pipeline_transfers.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "parallel/parallel_model/parallel_plan.h"

using namespace nemocube;

using Payload = Transfer::Payload;

TEST_CASE("pipeline transfers: between stages of one rank a tensor goes over as it is") {
  const auto alone = self_communicator("pp", 0);
  PipelineTransfers transfers(*alone, {0, 0, 0});
  const Tensor a = Tensor::from<float>({1, 2}, {1, 2}), g = Tensor::from<float>({3, 4}, {1, 2});
  transfers.give(Payload::activation, 0, 5, a);
  transfers.give(Payload::gradient, 2, 5, g);
  CHECK_THROWS_AS(transfers.finish(), std::logic_error);
  CHECK_THROWS_AS(transfers.take(Payload::activation, 0, 4), std::logic_error);
  CHECK(transfers.take(Payload::activation, 0, 5).same_storage(a));
  CHECK(transfers.take(Payload::gradient, 2, 5).same_storage(g));
  transfers.finish();
  const Exchange never{{.stage = 0, .microbatch = 0, .payload = Payload::activation, .from = 0, .to = 1}};
  CHECK_THROWS_AS(transfers.exchange(never, {}), std::logic_error);
}

TEST_CASE(
    "pipeline: the forward pass of one microbatch visits the stages in order, with an exchange between "
    "ranks") {
  PipelinePlan plan;
  plan.stages.resize(4);
  plan.rank_of_stage = {0, 1, 1, 0};
  const Schedule schedule = plan.forward_schedule(2);
  const std::vector<Program> programs = make_programs(schedule, simulate(schedule));
  check_rendezvous(programs);
  const auto items = [](const Program& program) {
    std::string text;
    for (const ProgramItem& item : program)
      text += std::holds_alternative<Exchange>(item) ? "x" : cat(std::get<Action>(item).stage);
    return text;
  };
  CHECK(items(programs[0]) == "0xx3");
  CHECK(items(programs[1]) == "x12x");
}

TEST_CASE("used groups: those of the plan and the model alone") {
  ModelConfig config;
  ParallelPlan plan;
  plan.data.level = ZeroLevel::none;
  using enum Group;
  const std::set<Group> dense{dp, dp_cp, tp, cp, pp};
  const bool moe = config.has_experts();
  std::set<Group> names = used_groups(plan, config);
  CHECK(std::ranges::includes(names, dense));
  CHECK(names.contains(ep) == moe);
  CHECK_FALSE(names.contains(dp_shard_cp));
  plan.data.level = ZeroLevel::gradients;
  names = used_groups(plan, config);
  CHECK(names.contains(dp_shard_cp));
  CHECK(names.contains(dp_replicate));
  for (const Group never : {mp, optimizer, embd, tp_ep_pp, tp_dp, dp_shard})
    CHECK_FALSE(names.contains(never));
}
