#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>

#include "data/datasets/mock.h"
#include "model/test_models.h"
#include "parallel/comm/together.h"
#include "tests/grids/grid_cases.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks.h"
#include "tests/support/shared_dir.h"
#include "train/evaluate/evaluate.h"
#include "train/model_io/model_io.h"
#include "train/step/train_step.h"

using namespace nemocube;
using namespace nemocube::testing;

// Two models in one job, each on a grid of its own.

namespace {

constexpr int steps = 3, microbatches = 4;

struct Side {
  GridCase grid;
  std::uint64_t seed;   ///< of weights and data
  bool broken = false;  ///< its last rank has a weight that is not finite
};

/// What a rank of a side has after steps and a validation, as bytes: results, and its part of the weights.
class Trained {
 public:
  template <class T>
  void add(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void add(const Tensor& t) {
    for (const double value : t.to_vector()) add(value);  // exact: the model is f32
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

/// One rank's part of a model on a grid.
class OnSide {
 public:
  OnSide(const Side& side, const LoadedModel& made)
      : side_(side),
        grid_(made.parallel->plan().grid),
        place_(place_of(grid_, test_world().rank())),
        model_(*made.model),
        parallel_(*made.parallel) {
    const Communicator& all = parallel_.all();
    CHECK(all.rank() == test_world().rank() - grid_.first_rank);
    parallel_.data().spread_values();
    for (MoeMixer* moe : model_.moe_layers()) {
      moe->router().aux_loss_coef = 0.02;
      moe->router().global_aux_loss_coef = 0.01;
    }
    if (side.broken && all.rank() == all.size() - 1)
      for (const Parameter& p : model_.parameters().all())
        if (p.name == "lm_head.weight") p.own.fill(INFINITY);
    optimizer_.emplace(model_.parameters(), OptimizerOptions{});
  }

  std::string train() {
    Trained made;
    for (int s = 0; s < steps; ++s) {
      const StepResult r = step(s);
      for (const double number : {r.loss, r.grad_norm, static_cast<double>(r.label_tokens),
                                  static_cast<double>(r.outcome == StepOutcome::updated)})
        made.add(number);
      for (const auto& [name, loss] : r.auxiliary_losses) made.add(loss);
      for (const Tensor& counts : r.expert_counts) made.add(counts);
      CHECK((r.outcome == StepOutcome::non_finite) == side_.broken);
      CHECK(r.not_finite == "");
    }
    const auto rows = std::make_shared<MockDataset>(
        MockOptions{.vocab_size = model_.config().vocab_size, .seq_length = 12, .num_samples = 5});
    const ValidationResult valid = validate(parallel_, rows, 1, nullptr);
    CHECK(valid.samples == 5);
    made.add(valid.loss);
    made.add(valid.label_tokens);
    made.add(parallel_.largest(10 * static_cast<std::int64_t>(side_.seed) + parallel_.all().rank()));
    for (const Parameter& p : model_.parameters().all()) made.add(p.own);
    return made.bytes();
  }

 private:
  StepResult step(int s) {
    std::vector<TokenBatch> batches;
    const int dp = static_cast<int>(grid_.dp());
    for (int m = static_cast<int>(place_.dp(grid_)); m < microbatches; m += dp) {
      const TestBatch batch = random_batch(model_.config(), {9 + m % 3, 4},
                                           1000 * side_.seed + static_cast<std::uint64_t>(10 * s + m));
      batches.emplace_back(batch.ids, batch.labels, batch.sequences);
    }
    StepOptions o;
    o.lr = 0.01 / (1 + s);
    o.weight_decay = 0.02;
    o.max_norm = 0.5;
    o.expert_bias_rate = 0.001;
    return train_step(parallel_, *optimizer_, batches, o);
  }

  Side side_;
  GridSizes grid_;
  GridPlace place_;
  Stack& model_;
  ParallelModel& parallel_;
  std::optional<Optimizer> optimizer_;
};

/// What each rank of the world has after these sides have trained at the same time. Their grids follow each
/// other in the world.
std::vector<std::string> trained(std::span<const Side> sides) {
  World& world = test_world();
  std::vector<LoadedModel> models;
  std::int64_t first = 0;
  for (const Side& side : sides) {
    ParallelPlan plan = plan_of(side.grid, grid_model());
    plan.grid.first_rank = first;
    first = plan.grid.end_rank();
    models.push_back(make_model(OpenedModel({}, grid_model()), DType::f32, side.seed,
                                Residence(Device::cpu, world, plan)));
  }
  std::string own;
  for (std::size_t i = 0; i < sides.size(); ++i)
    if (models[i].model) own = OnSide(sides[i], models[i]).train();
  return gather_texts(&world.communicator(), own);
}

void check_apart(const Side& front, const Side& back) {
  const std::vector<std::string> together = trained(std::array{front, back}),
                                 front_alone = trained({&front, 1}), back_alone = trained({&back, 1});
  const auto front_ranks = static_cast<std::size_t>(front.grid.grid.ranks());
  for (std::size_t r = 0; r < front_ranks; ++r) {
    CAPTURE(r);
    CHECK(!together[r].empty());
    const bool same = together[r] == front_alone[r];
    CHECK(same);
  }
  for (std::size_t r = 0; r < static_cast<std::size_t>(back.grid.grid.ranks()); ++r) {
    CAPTURE(r);
    CHECK(!together[front_ranks + r].empty());
    const bool same = together[front_ranks + r] == back_alone[r];
    CHECK(same);
  }
}

const GridCase data{.grid = {.dp_shard = 2}},
    tensor{.grid = {.tp = 2, .expt_tp = 2}, .sequence_parallel = true}, stages{.grid = {.pp = 2}},
    experts{.grid = {.dp_shard = 2, .ep = 2}}, context{.grid = {.cp = 2, .ep = 2}},
    replicas{.grid = {.dp_shard = 2}, .level = ZeroLevel::none}, single{.grid = {}, .level = ZeroLevel::none};

}  // namespace

TEST_CASE("two grids: models that train at once have the bits that each has alone" * on_ranks({4})) {
  if (test_world().size() < 4) return;
  check_apart({data, 3}, {tensor, 4});
  check_apart({stages, 5}, {experts, 6});
  check_apart({context, 7}, {replicas, 8});
  check_apart({single, 9}, {stages, 10});  // one rank is in neither
}

TEST_CASE("two grids: one whose numbers are not finite stops no step of the other" * on_ranks({4})) {
  if (test_world().size() < 4) return;
  check_apart({data, 3, true}, {experts, 4});
  check_apart({replicas, 3}, {data, 4, true});
}

TEST_CASE("two grids: each reads its part of a model's files, and the ranks outside have no model" *
          on_ranks({4})) {
  World& world = test_world();
  if (world.size() < 4) return;
  constexpr std::uint64_t seed = 11;
  const SharedDir dir;
  const OpenedModel fresh({}, grid_model()), stored(dir / "model", grid_model());
  if (world.rank() == 0) {
    const LoadedModel made = make_model(fresh, DType::f32, seed, Device::cpu);
    save_hf_weights(stored.directory(), named_tensors(*made.model), made.files);
  }
  world.communicator().host_barrier();
  for (const GridCase& c : {data, tensor, stages, single}) {
    CAPTURE(name_of(c));
    ParallelPlan plan = plan_of(c, grid_model());
    plan.grid.first_rank = 1;
    const Residence place(Device::cpu, world, plan);
    const LoadedModel loaded = load_model(stored, DType::f32, place),
                      made = make_model(fresh, DType::f32, seed, place);
    const bool inside = world.rank() >= 1 && world.rank() < plan.grid.end_rank();
    REQUIRE((loaded.model != nullptr) == inside);
    REQUIRE((made.model != nullptr) == inside);
    if (!inside) continue;
    const auto &got = loaded.model->parameters().all(), &want = made.model->parameters().all();
    REQUIRE(got.size() == want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      CAPTURE(want[i].name);
      CHECK_BITS(got[i].own.clone(), want[i].own.clone());
    }
  }
}
