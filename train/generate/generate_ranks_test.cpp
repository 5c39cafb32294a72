#include <doctest/doctest.h>

#include "model/test_models.h"
#include "tests/grids/grid_cases.h"
#include "tests/support/ranks.h"
#include "train/generate/generate.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

using Ids = std::vector<std::int64_t>;

std::vector<Ids> prompts_of_test() {
  std::vector<Ids> prompts;
  for (const std::int64_t length : {5, 1, 9}) {
    const Tensor ids = random_ids(grid_model(), length, static_cast<std::uint64_t>(length));
    prompts.emplace_back(ids.data<std::int64_t>(), ids.data<std::int64_t>() + length);
  }
  return prompts;
}

GenerateOptions options_of_test() {
  GenerateOptions options;
  options.max_new_tokens = 8;
  options.stop_ids = {3};
  return options;
}

/// The sequences end one after another: the second prompt is ended by its third token.
bool ends(std::size_t prompt, std::int64_t, std::size_t length) { return prompt == 1 && length == 3; }

}  // namespace

TEST_CASE(
    "generate of ranks: every grid continues prompts as one rank does on every device, some replicas without "
    "any") {
  Stack whole(grid_model(), DType::f64, Device::cpu);
  initialise(whole, 3);
  ParallelModel alone(whole);
  const std::vector<Ids> prompts = prompts_of_test();
  std::vector<std::size_t> lengths(prompts.size());
  const auto want = generate(alone, prompts, options_of_test(), [&](std::size_t prompt, std::int64_t id) {
    return ends(prompt, id, ++lengths[prompt]);
  });
  CHECK(want[0].size() > want[1].size());

  for (const GridCase& c : grid_cases(test_world().size(), ""))
    for (const Device device : {Device::cpu, Device::guard}) {
      CAPTURE(name_of(c));
      CAPTURE(device);
      const ParallelPlan plan = plan_of(c, grid_model());
      const GridPlace place = place_of(plan.grid, test_world().rank());
      const ProcessGroups groups(test_world(), make_grid(plan.grid));
      Stack model(grid_model(), DType::f64, Device::meta, part_of(plan, grid_model(), place));
      ParallelModel parallel(model, plan, groups, device);
      initialise(model, 3);
      parallel.data().spread_values();

      // The replicas take prompts in turn: with four of them the last has none.
      std::vector<std::size_t> own;
      for (auto i = static_cast<std::size_t>(place.dp(plan.grid)); i < prompts.size();
           i += static_cast<std::size_t>(plan.grid.dp()))
        own.push_back(i);
      std::vector<Ids> own_prompts;
      for (const std::size_t i : own) own_prompts.push_back(prompts[i]);
      GenerateOptions options = options_of_test();
      std::vector<std::size_t> own_lengths(own.size());
      parallel.data().hold(DataParallel::Held::everything);
      const auto got = generate(parallel, own_prompts, options, [&](std::size_t prompt, std::int64_t id) {
        return ends(own[prompt], id, ++own_lengths[prompt]);
      });
      parallel.data().let_go();
      REQUIRE(got.size() == own.size());
      for (std::size_t i = 0; i < own.size(); ++i) CHECK(got[i] == want[own[i]]);
    }
}
