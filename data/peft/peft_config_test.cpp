#include "data/peft/peft_config.h"

#include <doctest/doctest.h>

#include "data/json/test_dir.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

/// Reads a config with these members; `automodel`: the text of automodel_peft_config.json.
PeftConfig read(const std::string& members, const std::string& automodel = "") {
  const TestDir dir;
  spit(dir / "adapter_config.json",
       cat(R"({"peft_type": "LORA", "task_type": "CAUSAL_LM")", members.empty() ? "" : ", ", members, "}"));
  if (!automodel.empty()) spit(dir / "automodel_peft_config.json", automodel);
  return read_peft_config(dir.path());
}

std::string refusal(const std::string& members, const std::string& automodel = "") {
  return message_of([&] { read(members, automodel); });
}

void check_refused(const std::string& members, const std::string& want) {
  CAPTURE(members);
  const std::string message = refusal(members);
  CAPTURE(message);
  CHECK(message.find("adapter_config.json: ") != std::string::npos);
  CHECK(message.find(want) != std::string::npos);
}
}  // namespace

TEST_CASE("peft config: defaults are PEFT's") {
  const PeftConfig peft = read("");
  CHECK(peft.rank == 8);
  CHECK(peft.alpha == 8);
  CHECK(peft.dropout == 0);
  CHECK(peft.dropout_position == DropoutPosition::pre);
  CHECK(!peft.rank_stabilised);
  CHECK(!peft.moe_rank_scaling);
  CHECK(!peft.layout);
  CHECK(!peft.base_model_name_or_path);
  CHECK(peft.rank_of("model.layers.0.mixer.q_proj") == 8);
}

TEST_CASE("peft config: values") {
  const PeftConfig peft = read(R"("r": 16, "lora_alpha": 2.5, "lora_dropout": 0.25, "use_rslora": true,
      "rank_pattern": {"q_proj": 4, "[kv]_proj": 2}, "alpha_pattern": {"mixer.v_proj": 7},
      "base_model_name_or_path": "some/model", "target_modules": ["q_proj", "lm_head"],
      "target_parameters": ["mixer.experts.up_proj"], "modules_to_save": ["norm_f"], "peft_version": "0.19.0.dev0@abc",
      "init_lora_weights": "gaussian", "bias": "none", "use_dora": false, "loftq_config": {}, "new_field": null,
      "megatron_core": "megatron.core", "qalora_group_size": 16, "eva_config": {"rho": 2}, "layers_to_transform": [1])");
  CHECK(peft.rank == 16);
  CHECK(peft.alpha == 2.5);
  CHECK(peft.dropout == 0.25);
  CHECK(peft.rank_stabilised);
  CHECK(peft.rank_of("layers.0.mixer.q_proj") == 4);
  CHECK(peft.rank_of("layers.0.mixer.v_proj") == 2);
  CHECK(peft.rank_of("layers.0.mixer.o_proj") == 16);
  CHECK(peft.alpha_of("layers.0.mixer.v_proj") == 7);
  CHECK(peft.alpha_of("layers.0.mixer.q_proj") == 2.5);
  CHECK(peft.base_model_name_or_path == "some/model");
  CHECK(peft.target_modules == std::vector<std::string>{"q_proj", "lm_head"});
  CHECK(peft.target_parameters == std::vector<std::string>{"mixer.experts.up_proj"});
  CHECK(peft.modules_to_save == std::vector<std::string>{"norm_f"});
  CHECK(peft.layout == StackLayout::current);
}

TEST_CASE("peft config: the release decides about the layout of experts, else AutoModel's file") {
  const auto layout = [](const char* version, const char* automodel = "") {
    return read(cat(R"("peft_version": ")", version, '"'), automodel).layout;
  };
  CHECK(layout("0.18.1") == StackLayout::peft_0_18);
  CHECK(layout("0.9.0") == StackLayout::peft_0_18);
  CHECK(layout("0.19.0") == StackLayout::current);
  CHECK(layout("0.21.2") == StackLayout::current);
  CHECK(layout("1.0.0") == StackLayout::current);
  CHECK(layout("0.21.2", "{}") == StackLayout::current);
  CHECK(read("", "{}").layout == StackLayout::peft_0_18);
  check_refused(R"("peft_version": "newest")",
                "'peft_version': want a version such as \"0.19.0\", got \"newest\"");
  check_refused(R"("peft_version": "0.x")", "'peft_version': want a version");
  check_refused(R"("peft_version": 0.19)", "'peft_version': want a string, got 0.19");
}

TEST_CASE("peft config: AutoModel's settings") {
  const PeftConfig peft =
      read(R"("lora_dropout": 0.5)", R"({"dropout": 0.1, "dropout_position": "post", "lora_A_init": "xavier",
      "moe_rank_scaling": true, "use_dora": false, "use_triton": true, "target_modules": [], "lora_dtype": null})");
  CHECK(peft.dropout == 0.1);
  CHECK(peft.dropout_position == DropoutPosition::post);
  CHECK(peft.initialisation == LoraInitialisation::xavier);
  CHECK(peft.moe_rank_scaling);
  CHECK(read("", R"({"dropout_position": "pre"})").dropout_position == DropoutPosition::pre);
  CHECK(read("", R"({"lora_A_init": "uniform"})").initialisation == LoraInitialisation::kaiming);
  for (const char* bad :
       {R"({"use_dora": true})", R"({"use_dora": 1})", R"({"moe_rank_scaling": "yes"})", R"({"dropout": 1})",
        R"({"dropout_position": "middle"})", R"({"lora_A_init": 1})", "[]", "{"}) {
    CAPTURE(bad);
    CHECK(refusal("", bad).find("automodel_peft_config.json: ") != std::string::npos);
  }
}

TEST_CASE("peft config: what adapters in memory cannot say is refused by name") {
  check_refused(R"("use_dora": true)", "'use_dora': want null, false or no such key (DoRA's magnitudes");
  check_refused(R"("lora_bias": true)", "'lora_bias'");
  check_refused(R"("fan_in_fan_out": true)", "'fan_in_fan_out'");
  check_refused(R"("layer_replication": [[0, 2], [1, 3]])", "'layer_replication'");
  check_refused(R"("trainable_token_indices": [3])", "'trainable_token_indices'");
  check_refused(R"("use_qalora": true)", "'use_qalora'");
  check_refused(R"("alora_invocation_tokens": [1, 2])", "'alora_invocation_tokens'");
  check_refused(R"("corda_config": {"x": 1})", "'corda_config'");
  check_refused(R"("loftq_config": {"x": 1})", "'loftq_config'");
  check_refused(R"("lora_ga_config": {"x": 1})", "'lora_ga_config'");
  check_refused(R"("ensure_weight_tying": true)", "'ensure_weight_tying'");
  check_refused(R"("a_field_of_later": "on")",
                "'a_field_of_later': want null, false or no such key (its meaning");
  check_refused(R"("bias": "all")", "'bias': want \"none\"");
  check_refused(R"("bias": "lora_only")", "'bias': want \"none\"");
  for (const char* initial : {"pissa", "pissa_niter_4", "olora", "corda", "loftq", "lora_ga", "mica"})
    check_refused(cat(R"("init_lora_weights": ")", initial, '"'), "'init_lora_weights': want true");
  for (const char* initial : {"true", "false", "\"gaussian\"", "\"orthogonal\"", "\"eva\""})
    CHECK(refusal(cat(R"("init_lora_weights": )", initial)) == "no error");
}

TEST_CASE("peft config: the kind of adapter") {
  const auto message = [](const char* text) {
    const TestDir dir;
    spit(dir / "adapter_config.json", text);
    return message_of([&] { read_peft_config(dir.path()); });
  };
  CHECK(message(R"({"peft_type": "IA3"})").find("'peft_type': want \"LORA\", got \"IA3\"") !=
        std::string::npos);
  CHECK(message(R"({"peft_type": null})").find("'peft_type': want a value") != std::string::npos);
  CHECK(message("{}").find("'peft_type': want a value, got none") != std::string::npos);
  CHECK(message("[1]").find("want an object, got a list of 1") != std::string::npos);
  CHECK(message("").find("not valid JSON") != std::string::npos);
  CHECK(message(R"({"peft_type": "LORA", "peft_type": "LORA"})").find("appears twice") != std::string::npos);
  const TestDir dir;
  CHECK(message_of([&] { read_peft_config(dir.path()); }).find("adapter_config.json") != std::string::npos);
}

TEST_CASE("peft config: odd numbers and types") {
  for (const char* rank :
       {"0", "-1", "1048577", "99999999999999999999", "8.0", "NaN", "Infinity", "\"8\"", "true", "[8]"})
    check_refused(cat(R"("r": )", rank), "'r': want a rank, an integer from 1 to 1048576");
  for (const char* alpha : {"0", "-2", "NaN", "Infinity", "-Infinity", "1e999", "\"8\"", "true", "{}"})
    check_refused(cat(R"("lora_alpha": )", alpha),
                  alpha == std::string("1e999") ? "" : "'lora_alpha': want a finite number above 0");
  for (const char* dropout : {"1", "-0.1", "NaN", "\"0\"", "true"})
    check_refused(cat(R"("lora_dropout": )", dropout), "'lora_dropout': want a number from 0 on and below 1");
  check_refused(R"("rank_pattern": {"q_proj": 0})", "'rank_pattern.q_proj': want a rank");
  check_refused(R"("rank_pattern": {"q_proj": null})", "'rank_pattern.q_proj': want a rank");
  check_refused(R"("rank_pattern": ["q_proj"])", "'rank_pattern': want an object");
  check_refused(R"("rank_pattern": {"(": 2})", "'rank_pattern': ");
  check_refused(R"("alpha_pattern": {"q_proj": NaN})",
                "'alpha_pattern.q_proj': want a finite number above 0");
  check_refused(R"("use_rslora": 1)", "'use_rslora': want true or false");
  check_refused(R"("target_modules": 7)", "'target_modules': want a list");
  check_refused(R"("target_modules": ["q_proj", 7])", "'target_modules[1]': want a string");
  check_refused(R"("exclude_modules": [7])", "'exclude_modules[0]': want a string");
  check_refused(R"("target_parameters": "up_proj")", "'target_parameters': want a list");
  check_refused(R"("modules_to_save": true)", "'modules_to_save': want a list");
  check_refused(R"("base_model_name_or_path": 1)", "'base_model_name_or_path': want a string");
  check_refused(R"("bias": false)", "'bias': want a string");
  check_refused(R"("init_lora_weights": 1)", "'init_lora_weights': want true");
  std::string many;
  for (int i = 0; i < 10'001; ++i) many += cat(i ? "," : "", "\"q", i, "\": 2");
  check_refused(cat(R"("rank_pattern": {)", many, "}"),
                "'rank_pattern': want at most 10000 entries, got 10001");
}
