#include "train/assemble/group_rule.h"

#include <doctest/doctest.h>

#include "model/test_models.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

OptimizerSection with(std::vector<ParamGroupOverride> overrides) {
  OptimizerSection section;
  section.param_group_overrides = std::move(overrides);
  return section;
}

}  // namespace

TEST_CASE("group rule: the first matching entry counts, the rest keeps factors of 1") {
  ParameterStore store(tiny_config("M-"), DType::f32, Device::cpu);
  const GroupRule rule =
      group_rule(with({{"layers\\.0\\..*in_proj", 0.5, 0}, {"in_proj|norm_f", 0.25, 2}}), store);
  const auto factors = [&](const char* name) { return rule(store.get(name)); };
  CHECK(factors("backbone.layers.0.mixer.in_proj.weight").lr == 0.5);
  CHECK(factors("backbone.layers.0.mixer.in_proj.weight").weight_decay == 0);
  CHECK(factors("backbone.norm_f.weight").lr == 0.25);
  CHECK(factors("backbone.norm_f.weight").weight_decay == 2);
  CHECK(factors("lm_head.weight").lr == 1);
}

TEST_CASE("group rule: a pattern that changes nothing is an error that says what names look like") {
  const ParameterStore store(tiny_config("ME"), DType::f32, Device::cpu);
  // The first is misspelt. The second is Hugging Face's name of backbone.embeddings.weight, and only our
  // names count. The third is the name of a buffer, which has no learning rate.
  for (const char* pattern : {"in_porj", "^model\\.embed_tokens", "e_score_correction_bias"}) {
    CAPTURE(pattern);
    CHECK_THROWS_WITH_AS(group_rule(with({{"norm", 1, 0}, {pattern, 1, 0}}), store),
                         doctest::Contains(cat("'", pattern, "'").c_str()), Error);
  }
  CHECK_THROWS_WITH_AS(group_rule(with({{"in_porj", 1, 0}}), store),
                       doctest::Contains("backbone.embeddings.weight"), Error);
}
