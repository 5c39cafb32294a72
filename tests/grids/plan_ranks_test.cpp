#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <set>

#include "core/log.h"
#include "model/test_models.h"
#include "tests/grids/grid_cases.h"
#include "tests/support/ranks.h"
#include "train/cost/run_costs.h"
#include "train/step/train_step.h"

using namespace nemocube;
using namespace nemocube::testing;

// What ranks hold and send in a step, against what the plan says.

namespace {

StepLoad load_of(const GridCase& c, DType dtype, const DiffusionTraining& diffusion) {
  StepLoad load;
  load.dtype = dtype;
  const std::vector<std::int64_t> lengths =
      c.packed ? std::vector<std::int64_t>{37, 1, 4} : std::vector<std::int64_t>{13};
  load.microbatch = Sequences::of_lengths(lengths_for(diffusion, lengths));
  load.microbatches = 4;
  load.unlabelled = c.packed ? 1 : 0;
  load.loss_rows = 32;
  load.checkpointing = c.checkpointing;
  if (c.packed) load.router_losses = {.seq_aux = true, .global_aux = true};
  if (c.checkpointing) load.router_losses = {.aux = true};
  if (c.whole_head) load.router_losses = {.z = true};
  return load;
}

TokenBatch microbatch(const StepLoad& load, std::uint64_t seed) {
  const Sequences& s = load.microbatch;
  const Tensor labels = random_ids(grid_model(), s.tokens(), seed + 1);
  for (std::int64_t i = 0; i < s.count(); ++i)
    for (std::int64_t t = std::max(s.begin(i), s.end(i) - load.unlabelled); t < s.end(i); ++t)
      labels.data<std::int64_t>()[t] = -100;
  return {random_ids(grid_model(), s.tokens(), seed), labels, s};
}

void prepare(Stack& model, const StepLoad& load) {
  model.activation_checkpointing = load.checkpointing;
  model.loss_chunk_rows = load.loss_rows;
  for (MoeMixer* moe : model.moe_layers()) {
    RouterOptions& o = moe->router();
    o.balanced = true;
    o.aux_loss_coef = load.router_losses.aux ? 0.01 : 0;
    o.seq_aux_loss_coef = load.router_losses.seq_aux ? 0.01 : 0;
    o.global_aux_loss_coef = load.router_losses.global_aux ? 0.01 : 0;
    o.z_loss_coef = load.router_losses.z ? 0.01 : 0;
  }
}

RankTraffic::Sums sent_so_far(const ProcessGroups& groups) {
  RankTraffic::Sums sums;
  const auto add = [&](Group name, const Communicator& group) {
    if (group.size() == 1) return;
    for (std::size_t i = 0; i < operation_count; ++i) {
      const auto operation = static_cast<Operation>(i);
      const CommStats stats = group.stats(operation);
      sums[{name, operation}] = {stats.calls, stats.bytes_sent};
    }
  };
  add(Group::world, groups.all());
  for (const Group group : groups.present())
    if (group != Group::grid) add(group, groups[group]);
  return sums;
}

template <class TensorOf>
std::int64_t bytes_of_storages(const Stack& model, TensorOf&& tensor_of) {
  std::set<const Storage*> storages;
  std::int64_t bytes = 0;
  for (const Parameter& p : model.parameters().all())
    if (const Tensor t = tensor_of(p); t.defined() && storages.insert(t.storage().get()).second)
      bytes += t.storage()->bytes();
  return bytes;
}

void check_memory(const Stack& model, const Optimizer& optimizer, const std::vector<MemoryItem>& items) {
  std::int64_t masters = 0, moments = 0;
  for (const StateTensor& t : optimizer.state())
    (t.name.starts_with("master.") ? masters : moments) += t.value.bytes();
  CHECK(items.at(0).bytes == bytes_of_storages(model, [](const Parameter& p) { return p.own; }));
  CHECK(items.at(1).bytes == bytes_of_storages(model, [](const Parameter& p) { return p.own_gradient; }));
  CHECK(items.at(2).bytes == masters);
  CHECK(items.at(3).bytes == moments);
}

void compare_with_plan(const GridCase& c, DType dtype, const ModelSetup& config = grid_model()) {
  World& world = test_world();
  const ParallelPlan plan = plan_of(c, config);
  const StepLoad load = load_of(c, dtype, config.choices.diffusion);
  const GridPlace place = place_of(plan.grid, world.rank());
  const ProcessGroups groups(world, make_grid(plan.grid), used_groups(plan, config));
  Stack model(config, dtype, Device::meta, part_of(plan, config, place));
  ParallelModel parallel(model, plan, groups, Device::cpu);
  initialise(model, 3);
  parallel.data().spread_values();
  prepare(model, load);
  Optimizer optimizer(model.parameters(), {});
  RunCosts planned(config, plan, load, {});

  const auto seed = static_cast<std::uint64_t>(100 * place.dp(plan.grid));
  std::vector<TokenBatch> batches;
  for (std::int64_t m = 0; m < load.microbatches; ++m)
    batches.push_back(microbatch(load, seed + static_cast<std::uint64_t>(m)));
  const StepOptions options{.lr = 0.01};
  const RankTraffic::Sums before = sent_so_far(groups);
  (void)train_step(parallel, optimizer, batches, options);
  const RankTraffic::Sums after = sent_so_far(groups);

  RankTraffic::Sums want = planned.traffic(world.rank());
  for (const auto& [key, sum] : after) {
    CAPTURE(name_of(key.first));
    CAPTURE(name_of(key.second));
    CHECK(sum.calls - before.at(key).calls == want[key].calls);
    CHECK(sum.bytes - before.at(key).bytes == want[key].bytes);
  }
  for (const auto& [key, sum] : want) CHECK(after.contains(key));
  check_memory(model, optimizer, planned.memory(world.rank()));
}

}  // namespace

TEST_CASE("plan: a step sends and holds what the plan says, to the byte") {
  const char* wish = std::getenv("NEMOCUBE_GRIDS");
  for (const GridCase& c : grid_cases(test_world().size(), wish ? wish : "")) {
    CAPTURE(name_of(c));
    compare_with_plan(c, DType::f32);
    compare_with_plan(c, DType::bf16);
  }
}

TEST_CASE("plan: the same with low-rank adapters of frozen weights") {
  for (const GridCase& c : grid_cases(test_world().size(), "")) {
    CAPTURE(name_of(c));
    ModelSetup config = grid_model();
    config.choices.lora = adapters_of_all(config, DropoutPosition::post);
    for (const TensorSpec& spec : tensor_specs(config))
      if (!spec.buffer && spec.factor == LoraFactor::none) config.choices.frozen.insert(spec.id);
    compare_with_plan(c, DType::bf16, config);
  }
}

TEST_CASE("plan: the same with frozen weights") {
  for (const GridCase& c : grid_cases(test_world().size(), "")) {
    CAPTURE(name_of(c));
    // What comes first has no backward pass. Later a part of a block is frozen, and all of another one.
    for (const bool first : {true, false}) {
      CAPTURE(first);
      ModelSetup config = grid_model();
      for (const TensorSpec& spec : tensor_specs(config)) {
        const std::int64_t block = spec.id.block_of_model().value_or(-1);
        const bool is_first = spec.name.starts_with("backbone.embeddings.") || (block >= 0 && block < 3),
                   is_part = block == 5 || spec.name.ends_with("in_proj.weight") || spec.experts;
        if (!spec.buffer && (first ? is_first : is_part)) config.choices.frozen.insert(spec.id);
      }
      compare_with_plan(c, DType::bf16, config);
    }
  }
}

TEST_CASE("plan: the same with blocks that differ in size") {
  for (const GridCase& c : grid_cases(test_world().size(), "")) {
    CAPTURE(name_of(c));
    compare_with_plan(c, DType::f32, pruned_grid_model());
    ModelSetup config = pruned_grid_model();
    config.train_mtp({2, false, 0.3});
    config.choices.lora = adapters_of_all(config, DropoutPosition::post);
    compare_with_plan(c, DType::bf16, config);
  }
}

TEST_CASE("plan: the same with a tied head and other norms and residual forms") {
  for (const GridCase& c : grid_cases(test_world().size(), "")) {
    CAPTURE(name_of(c));
    ModelSetup config = grid_model();
    config.config.tie_word_embeddings = true;
    config.config.residual = Residual::norm_before_and_after;
    config.config.norm = NormKind::layernorm;
    if (c.grid.pp * c.chunks <= 4) own_config(config.config, 7).residual = Residual::shared_norm;
    compare_with_plan(c, DType::bf16, config);
    config.train_mtp({2, true, 0.3});
    config.choices.frozen = {embeddings_name() / "weight"};
    compare_with_plan(c, DType::f32, config);
  }
}

TEST_CASE("families: a step of a model of every family sends and holds what the plan says") {
  const char* wish = std::getenv("NEMOCUBE_GRIDS");
  std::size_t number = 0;
  for (const GridCase& of : grid_cases(test_world().size(), wish ? wish : "")) {
    for (const auto& [family, model, diffusion] :
         family_models_of(of, number++, wish && std::string_view(wish) == "all")) {
      const GridCase c = model.has_experts() ? of : without_experts(of);
      CAPTURE(name_of(c));
      CAPTURE(family);
      ModelSetup config = model;
      config.choices.diffusion = diffusion;
      compare_with_plan(c, DType::bf16, config);
      config.choices.lora = adapters_of_all(config, DropoutPosition::post);
      for (const TensorSpec& spec : tensor_specs(config))
        if (spec.factor == LoraFactor::none) config.choices.frozen.insert(spec.id);
      compare_with_plan(c, DType::f32, config);
    }
  }
}

TEST_CASE("plan: the same with mixers on one norm, which send what enters and leaves them once") {
  for (const GridCase& c : grid_cases(test_world().size(), "")) {
    CAPTURE(name_of(c));
    ModelSetup config = grid_model();
    share_norms(config.config, c.grid.pp * c.chunks);
    compare_with_plan(c, DType::bf16, config);
    config.choices.lora = adapters_of_all(config, DropoutPosition::pre);
    compare_with_plan(c, DType::f32, config);
    config.choices.lora = {};
    // What two mixers add has a backward pass, because the first of both has one.
    for (const TensorSpec& spec : tensor_specs(config))
      if (!spec.buffer && !(spec.id.in_mixer() && spec.id.block == 6)) config.choices.frozen.insert(spec.id);
    compare_with_plan(c, DType::bf16, config);
  }
}

TEST_CASE("plan: the same with multi-token prediction") {
  for (const GridCase& c : grid_cases(test_world().size(), "")) {
    CAPTURE(name_of(c));
    for (const bool repeated : {false, true}) {
      CAPTURE(repeated);
      ModelSetup config = grid_model();
      config.train_mtp({2, repeated, 0.3});
      compare_with_plan(c, DType::bf16, config);
    }
    ModelSetup config = grid_model();
    config.train_mtp({2, true, 0.3});
    const auto specs = tensor_specs(config);
    for (const TensorSpec& spec : specs)  // nothing has a gradient before the first depth
      if (!spec.buffer && spec.name != "mtp.layers.0.hnorm.weight") config.choices.frozen.insert(spec.id);
    compare_with_plan(c, DType::f32, config);
  }
}
