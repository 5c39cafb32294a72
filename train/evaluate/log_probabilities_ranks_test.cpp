#include "train/evaluate/log_probabilities.h"

#include <doctest/doctest.h>

#include "model/test_models.h"
#include "tests/grids/grid_cases.h"
#include "tests/support/ranks.h"
#include "train/evaluate/evaluate.h"
#include "train/evaluate/test_rows.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

/// Gathers of the groups that divide weights, so far on this rank.
std::int64_t gathers(const ProcessGroups& groups) {
  std::int64_t calls = 0;
  for (const Group group : {Group::dp_shard_cp, Group::expt_dp})
    calls += groups[group].stats(Operation::all_gather).calls;
  return calls;
}

/// With rows in batches of one and of three the last batch has none for some ranks.
void check_grid(const GridCase& c, const ModelConfig& config, const std::vector<LabelLogProbability>& want) {
  const auto data = std::make_shared<ScoredRowsData>();
  for (const Device device : {Device::cpu, Device::guard}) {
    CAPTURE(device);
    const ParallelPlan plan = plan_of(c, config);
    const ProcessGroups groups(test_world(), make_grid(plan.grid));
    Stack model(config, DType::f64, Device::meta,
                part_of(plan, config, place_of(plan.grid, test_world().rank())));
    ParallelModel parallel(model, plan, groups, device);
    initialise(model, 3);
    parallel.data().spread_values();
    for (const std::int64_t batch : {1, 3}) {
      std::int64_t calls[2] = {};
      for (const auto hold : {DataParallel::Held::root, DataParallel::Held::everything}) {
        CAPTURE(batch);
        const std::int64_t before = gathers(groups);
        std::vector<LabelLogProbability> all;
        std::int64_t lines = 0;
        const ValidationResult result = validate(
            parallel, data, batch, nullptr, {}, {}, {},
            [&](const ScoredRows& rows) {
              CHECK(rows.begin == lines);
              lines = rows.end;
              all.insert(all.end(), rows.labels.begin(), rows.labels.end());
            },
            hold);
        CHECK(lines == data->size());
        CHECK(result.label_tokens == std::ssize(want));
        check_scores(all, want, 1e-11);
        calls[hold == DataParallel::Held::everything] = gathers(groups) - before;
      }
      // One gather of each unit is the least, and there are as many with one batch.
      CHECK(calls[1] <= calls[0]);
    }
  }
}

}  // namespace

TEST_CASE("log-probabilities of ranks: every grid finds those of one rank on every device") {
  Stack whole(grid_model(), DType::f64, Device::cpu);
  initialise(whole, 3);
  const std::vector<LabelLogProbability> want = by_whole_logits(whole, ScoredRowsData());
  for (const GridCase& c : grid_cases(test_world().size(), "")) {
    CAPTURE(name_of(c));
    check_grid(c, grid_model(), want);
  }
}

TEST_CASE("log-probabilities of ranks: families with a cap, a bias, a scale or a normalised head") {
  std::size_t number = 0;
  for (const GridCase& of : grid_cases(test_world().size(), ""))
    for (const auto& [family, config, diffusion] : family_models_of(of, number++, false)) {
      const GridCase c = config.has_experts() ? of : without_experts(of);
      CAPTURE(name_of(c));
      CAPTURE(family);
      Stack whole(config, DType::f64, Device::cpu);
      initialise(whole, 3);
      check_grid(c, config, by_whole_logits(whole, ScoredRowsData()));
    }
}

TEST_CASE("log-probabilities of ranks: weights are gathered once, and given back" * on_ranks({2, 4})) {
  const ModelConfig config = tiny_config("ME*-M");
  ParallelPlan plan;
  plan.grid.dp_shard = test_world().size();
  plan.data.level = ZeroLevel::parameters;
  const ProcessGroups groups(test_world(), make_grid(plan.grid));
  Stack model(config, DType::f32, Device::meta,
              part_of(plan, config, place_of(plan.grid, test_world().rank())));
  ParallelModel parallel(model, plan, groups, Device::cpu);
  initialise(model, 3);
  const auto data = std::make_shared<ScoredRowsData>();
  const auto gathers_of = [&](std::int64_t batch, DataParallel::Held hold) {
    const std::int64_t before = gathers(groups);
    validate(
        parallel, data, batch, nullptr, {}, {}, {}, [](const ScoredRows&) {}, hold);
    return gathers(groups) - before;
  };
  using Held = DataParallel::Held;
  CHECK(gathers_of(1, Held::everything) == gathers_of(7, Held::everything));
  CHECK(gathers_of(1, Held::root) > gathers_of(1, Held::everything));
  for (const Parameter& p : model.parameters().all())
    if (p.node && p.value.ndim() == 2) CHECK(p.value.storage()->released());
}
