#include "train/recipe/differences.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "core/error.h"
#include "train/recipe/recipe.h"

using namespace nemocube;

namespace {

const std::string recipe = R"(
dataset: {_target_: mock, vocab_size: 32, seq_len: 8}
optimizer: {_target_: torch.optim.AdamW, lr: 1e-3, betas: [0.9, 0.98]}
step_scheduler: {max_steps: 5}
)";

std::string resolved(const std::vector<std::string>& overrides) {
  return describe(parse_recipe(recipe, "r", overrides, RecipeUse::data));
}

std::string told(const std::string& before, const std::string& now) {
  std::string all;
  for (const KeyDifference& d : recipe_differences(before, now))
    all += d.key + ": " + d.before + " -> " + d.now + "\n";
  return all;
}

std::string without_line(std::string yaml, const std::string& text) {
  const std::size_t at = yaml.find(text);
  REQUIRE(at != yaml.npos);
  const std::size_t begin = yaml.rfind('\n', at) + 1;
  return yaml.erase(begin, yaml.find('\n', at) + 1 - begin);
}

}  // namespace

TEST_CASE("recipe differences: one entry for a key, with both values") {
  CHECK(told(resolved({}), resolved({})) == "");
  CHECK(told(resolved({}), resolved({"optimizer.lr=2e-3", "step_scheduler.max_steps=7"})) ==
        "optimizer.lr: 0.001 -> 0.002\nstep_scheduler.max_steps: 5 -> 7\n");
  CHECK(told(resolved({}), resolved({"optimizer.betas=[0.8, 0.98]"})) ==
        "optimizer.betas: [0.9, 0.98] -> [0.8, 0.98]\n");
}

TEST_CASE("recipe differences: a section that came or went is one entry") {
  const std::vector<std::string> with_schedule{"lr_scheduler.lr_decay_style=linear"};
  const std::string went = told(resolved(with_schedule), resolved({}));
  CHECK(went.starts_with("lr_scheduler: {lr_decay_style: linear, lr_warmup_steps: null, "));
  CHECK(std::ranges::count(went, '\n') == 1);
  const std::string came = told(resolved({}), resolved(with_schedule));
  CHECK(came.starts_with("lr_scheduler:  -> {lr_decay_style: linear, lr_warmup_steps: null, "));
  CHECK(std::ranges::count(came, '\n') == 1);
  CHECK(told("a: {b: {c: 1, d: 2}, e: 3}\n", "a: {e: 3}\n") == "a.b: {c: 1, d: 2} -> \n");
  CHECK(told("a: {b: 1}\n", "a: 2\n") == "a: {b: 1} -> 2\n");
}

TEST_CASE("recipe differences: a key that the older program did not know counts when it is not the default") {
  const std::string old = without_line(resolved({}), "max_nonfinite_steps");
  CHECK(told(old, resolved({})) == "");
  CHECK(told(without_line(resolved({}), "expert_tp_size"), resolved({})) == "");
  CHECK(told(resolved({}), resolved({"distributed.pp_size=2", "distributed.pipeline.pp_schedule=zbv"}))
            .starts_with("distributed.pipeline:  -> {pp_schedule: zbv, "));
  const std::string told_of = told(old, resolved({"step_scheduler.max_nonfinite_steps=3"}));
  CHECK(told_of == "step_scheduler.max_nonfinite_steps: 10 -> 3\n");
  // An older recipe that this program refuses is compared as written, without defaults.
  CHECK(told("optimizer: {lr: 0.5, gone: 1}\n", "optimizer: {lr: 0.25}\n") ==
        "optimizer.gone: 1 -> \noptimizer.lr: 0.5 -> 0.25\n");
  CHECK_THROWS_AS(recipe_differences("a: [", "a: 1"), Error);
}
