#include <doctest/doctest.h>

#include "train/recipe/test_recipes.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("the section peft: AutoModel's keys and their defaults, and what is not in this build") {
  CHECK_FALSE(parse(with("peft: none")).peft.has_value());
  CHECK_FALSE(parse(with("")).peft.has_value());
  const Recipe plain = parse(with("peft: {}"));
  REQUIRE(plain.peft.has_value());
  CHECK(plain.peft->dim == 8);
  CHECK(plain.peft->alpha == 32);
  CHECK(plain.peft->dropout == 0);
  CHECK(plain.peft->dropout_position == DropoutPosition::post);
  CHECK(plain.peft->initialisation == LoraInitialisation::xavier);
  CHECK_FALSE(plain.peft->lora_dtype.has_value());
  CHECK(plain.peft->target_modules.empty());

  const Recipe r = parse(with(
      "peft: {_target_: nemo_automodel.components._peft.lora.PeftConfig, target_modules: '*.q_proj', dim: 4, "
      "alpha: 6.5, dropout: 0.25, dropout_position: pre, lora_A_init: uniform, lora_dtype: float32, "
      "moe_rank_scaling: true, use_triton: true, use_memory_efficient_lora: false, use_dora: false}"));
  CHECK(r.peft->target_modules == std::vector<std::string>{"*.q_proj"});
  CHECK(r.peft->dim == 4);
  CHECK(r.peft->alpha == 6.5);
  CHECK(r.peft->dropout == 0.25);
  CHECK(r.peft->dropout_position == DropoutPosition::pre);
  CHECK(r.peft->initialisation == LoraInitialisation::kaiming);
  CHECK(r.peft->lora_dtype == DType::f32);
  CHECK(r.peft->moe_rank_scaling);
  CHECK(r.no_effect == std::vector<std::string>{"peft.use_memory_efficient_lora", "peft.use_triton"});
  CHECK(describe(parse(describe(r))) == describe(r));

  CHECK(
      contains(error_with("peft: {use_dora: true}"), "peft.use_dora: DoRA is not in this build; want false"));
  CHECK(contains(error_with("peft: {_target_: x.OtherConfig}"),
                 "peft._target_: no class or function 'OtherConfig' in this build"));
  CHECK(
      error_with("peft: {target_module: a}") ==
      "r.yaml:2: peft.target_module: unknown key 'target_module'; the nearest known key is 'target_modules'");
  CHECK(contains(error_with("peft: {r: 8}"), "peft.r: unknown key 'r'"));
  CHECK(error_with("model: {moe: {expert_bias_update_rate: 0.5}}\npeft: {dim: 4}") ==
        "r.yaml:2: model.moe.expert_bias_update_rate: moves biases of the model, which a run with `peft` "
        "leaves as it is; "
        "want 0");
  CHECK(error_with("model: {moe: {expert_bias_update_rate: 0}}\npeft: {dim: 4}") == "no error");
  CHECK(error_with("peft: {target_modules: '*_proj', exclude_modules: lm_head}") ==
        "r.yaml:2: peft.target_modules: is given, and so is peft.exclude_modules; want one of them");
  for (const char* key : {"target_modules", "exclude_modules"})
    CHECK(error_with(cat("peft: {match_all_linear: true, ", key, ": '*_proj'}")) ==
          cat("r.yaml:2: peft.match_all_linear: is true, and peft.", key, " is given; want one of them"));
  CHECK(error_with("peft: {match_all_linear: true}") == "no error");
  CHECK(contains(error_with("peft: {dropout: 1}"), "peft.dropout: want a number from 0 to below 1"));
  CHECK(contains(error_with("peft: {dim: 0}"), "peft.dim: want an integer from 1"));
  CHECK(contains(error_with("peft: {dim: 2000000}"), "peft.dim: want an integer from 1"));
  for (const char* alpha : {"0", "-1", ".inf", ".nan"})
    CHECK(contains(error_with(cat("peft: {alpha: ", alpha, "}")), "peft.alpha: want "));
  CHECK(parse(with("peft: {adapter_path: a, dim: 4, target_modules: '*_proj'}")).no_effect ==
        std::vector<std::string>{"peft.dim", "peft.target_modules"});
  CHECK(contains(error_with("peft: {dropout_position: middle}"), "peft.dropout_position: want one of"));
  CHECK(contains(error_with("peft: {lora_A_init: xaver}"), "peft.lora_A_init: want one of"));
}
