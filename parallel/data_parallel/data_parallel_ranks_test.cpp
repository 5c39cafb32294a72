#include "parallel/data_parallel/data_parallel.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "model/test_models.h"
#include "parallel/parallel_model/parallel_model.h"
#include "tests/support/ranks.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

ModelConfig model_of_all_kinds() {
  ModelConfig config = tiny_config("M-E*");
  config.moe.n_routed_experts = 8;
  config.moe.shared_expert_intermediate_size = 10;
  return config;
}

/// Two tensor-parallel ranks with sequence parallel, and experts on all ranks: every block begins with an
/// exchange, but for the forward pass of the experts' block.
ParallelPlan plan_for(std::int64_t ranks) {
  ParallelPlan plan;
  plan.grid = {.tp = 2, .dp_shard = ranks / 2, .ep = ranks};
  plan.sequence_parallel = true;
  plan.data.level = ZeroLevel::parameters;
  return plan;
}

/// The blocks whose weights are here, and those whose gradients wait for their reduction: "12 3".
class BlockStates {
 public:
  explicit BlockStates(Stack& model) : model_(model) {}
  std::string operator()() const {
    std::string weights, gradients;
    for (std::int64_t block = 0; block < model_.config().num_layers(); ++block) {
      const Parameter& p = *std::ranges::find_if(model_.parameters().all(), [&](const Parameter& of) {
        return of.wants_grad() && unit_of(of.id) == block;
      });
      if (!p.value.storage()->released()) weights += std::to_string(block);
      if (p.node->filled()) gradients += std::to_string(block);
    }
    return cat(weights, " ", gradients);
  }

 private:
  Stack& model_;
};

/// Notes the states in front of a transform and behind it, in the forward pass (`forward`) or in the backward
/// pass.
void observe(Stack& model, std::string_view point, bool forward, std::string& states) {
  Transform& transform = *model.transform_points().find(named(point))->second.transform;
  transform = [&states, forward, now = BlockStates(model), inner = transform](Context& ctx, const Var& x,
                                                                              const Sequences& whole) {
    const auto note = [&states, now] { states += now() + "|"; };
    if (forward) note();
    if (!forward && ctx.tape) ctx.tape->record("behind", note);
    const Var y = apply(inner, ctx, x, whole);
    if (forward) note();
    if (!forward && ctx.tape) ctx.tape->record("in front", note);
    return y;
  };
}

/// The states of a rank that has no part of its weights elsewhere: all weights are always there.
std::string with_all_weights(const std::string& states) {
  std::string all;
  for (std::size_t begin = 0; begin < states.size();) {
    const std::size_t end = std::min(states.find('|', begin) + 1, states.size());
    const std::string state = states.substr(begin, (end == 0 ? states.size() : end) - begin);
    all += "0123" + state.substr(state.find(' '));
    begin += state.size();
  }
  return all;
}

void observe_all(Stack& model, std::string& states) {
  for (const char* point :
       {"0.mixer.in_proj.input", "1.mixer.up_proj.input", "2.mixer.routed.input", "3.mixer.qkv.input"})
    observe(model, cat("backbone.layers.", point), true, states);
  for (const char* point : {"0.mixer.out_proj.output", "1.mixer.down_proj.output", "2.mixer.experts.output",
                            "3.mixer.o_proj.output"})
    observe(model, cat("backbone.layers.", point), false, states);
  observe(model, "backbone.embeddings.output", false, states);
}

}  // namespace

TEST_CASE("data parallel: gathers and reductions begin behind a block's first exchange") {
  World& world = test_world();
  if (world.size() % 2 != 0) return;  // two ranks for tensor parallelism
  const ModelConfig config = model_of_all_kinds();
  const TestBatch batch = random_batch(config, {9, 4}, 7);
  // On two ranks no dense weight has a part elsewhere.
  const auto want = [&](const std::string& states) {
    return world.size() > 2 ? states : with_all_weights(states);
  };
  for (const bool deferred : {false, true})
    for (const bool overlap : {true, false}) {
      CAPTURE(deferred);
      CAPTURE(overlap);
      ParallelPlan plan = plan_for(world.size());
      plan.data.overlap = overlap;
      const ProcessGroups groups(world, make_grid(plan.grid), used_groups(plan, config));
      Stack model(config, DType::f64, Device::meta, part_of(plan, config, place_of(plan.grid, world.rank())));
      ParallelModel parallel(model, plan, groups, Device::cpu);
      initialise(model, 3);
      std::string states;
      observe_all(model, states);

      DataParallel& data = parallel.data();
      data.begin_step();
      data.begin_backward(true);
      Tape tape;
      if (deferred) tape.defer_weight_work();
      Context ctx{.tape = &tape};
      BlockRecords records = model.make_records();
      const Var hidden = model.forward(
          ctx, {.ids = batch.ids, .residual = {}, .sequences = batch.sequences, .records = &records});
      const Var loss = model.loss(ctx, hidden, batch.labels, batch.sequences, 1);
      CHECK(states == want(overlap ? "0 |01 |1 |12 |23 |23 |3 |3 |" : "0 |0 |1 |1 |2 |2 |3 |3 |"));

      states.clear();
      tape.backward(loss, Tensor::scalar(1, DType::f64, Device::cpu));
      if (!deferred) {
        // The last of each pair is behind the exchange.
        CHECK(states ==
              want(overlap ? "3 |23 |2 3|12 |1 2|01 |0 1|0 | 0| |" : "3 |3 |2 |2 |1 |1 |0 |0 | | |"));
      } else {
        CHECK(BlockStates(model)() == want(" "));
        data.begin_backward(true);
        tape.run_weight_work();
        CHECK(BlockStates(model)() == want(" "));
      }
      // What waits when a pass ends, here that of block 1 alone, waits no longer when the next one begins.
      data.before_backward(1);
      data.after_backward(1);
      data.gradients_written(1);
      CHECK(BlockStates(model)() == want(overlap ? " 1" : " "));
      data.begin_backward(true);
      CHECK(BlockStates(model)() == want(" "));
      data.finish_gradients();
      CHECK(BlockStates(model)() == want(" "));
      data.finish_update();
    }
}

TEST_CASE("data parallel: weights of experts that no other rank has a part of are there once, and stay") {
  World& world = test_world();
  if (world.size() % 2 != 0) return;  // two ranks for tensor parallelism
  const ModelConfig config = model_of_all_kinds();
  ParallelPlan plan = plan_for(world.size());
  const ProcessGroups groups(world, make_grid(plan.grid), used_groups(plan, config));
  Stack model(config, DType::f32, Device::meta, part_of(plan, config, place_of(plan.grid, world.rank())));
  ParallelModel parallel(model, plan, groups, Device::cpu);
  std::size_t experts = 0;
  for (const Parameter& p : model.parameters().all())
    if (p.name.find(".experts.") != p.name.npos) {
      ++experts;
      CHECK_FALSE(p.value.storage()->released());
      CHECK(p.own.storage() == p.value.storage());
      CHECK(p.own.numel() == p.value.numel());
    } else if (p.wants_grad() && world.size() > 2) {
      CHECK(p.value.storage()->released());
      CHECK(p.own.storage() != p.value.storage());
    }
  CHECK(experts == 2);
}
