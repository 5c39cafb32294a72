#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/safetensors/reader.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

// Whole runs with a model whose blocks differ in size.

namespace {

namespace fs = std::filesystem;

/// Blocks 4 to 7 have sizes of their own.
void write_pruned_config(const fs::path& model) {
  Json config = read_json_file(model / "config.json");
  config["hybrid_override_pattern"] = "ME*-ME*-";
  config["per_layer_config"] = {
      {"4", {{"mamba_num_heads", 8}, {"mamba_head_dim", 4}, {"ssm_state_size", 4}}},
      {"5", {{"n_routed_experts", 4}, {"num_experts_per_tok", 1}, {"moe_intermediate_size", 8}}},
      {"6", {{"num_attention_heads", 2}}},
      {"7", {{"intermediate_size", 16}}}};
  spit(model / "config.json", dump_json(config));
}

}  // namespace

TEST_CASE("pruned models: a run logs, saves, resumes and generates by the sizes of each block") {
  const RunDir dir;
  write_pruned_config(dir / "model");
  must_run(dir.train(four_steps));
  const auto log = read_jsonl(dir / "straight" / "training.jsonl");
  REQUIRE(log.size() == 4);

  const fs::path last = dir / "straight" / "epoch_0_step_3";
  const Json saved = read_json_file(last / "model" / "config.json");
  CHECK(saved["per_layer_config"] == read_json_file(dir / "model" / "config.json")["per_layer_config"]);
  const SafetensorsFile weights(last / "model" / "model.safetensors");
  const std::string layers = "backbone.layers.";
  CHECK(weights.at(layers + "1.mixer.gate.weight").shape == std::vector<std::int64_t>{6, 16});
  CHECK(weights.at(layers + "5.mixer.gate.weight").shape == std::vector<std::int64_t>{4, 16});
  CHECK(weights.at(layers + "5.mixer.experts.3.up_proj.weight").shape == std::vector<std::int64_t>{8, 16});
  CHECK(weights.find(layers + "5.mixer.experts.4.up_proj.weight") == nullptr);
  CHECK(weights.at(layers + "7.mixer.up_proj.weight").shape == std::vector<std::int64_t>{16, 16});

  must_run(
      dir.train(plus(four_steps, {"checkpoint.checkpoint_dir=resumed",
                                  "checkpoint.restore_from=" + (dir / "straight/epoch_0_step_1").string()})));
  CHECK(differences(last, dir / "resumed" / "epoch_0_step_3") == "");

  const std::string model = (last / "model").string();
  must_run(nemocube_in(dir.path(),
                       {"generate", "--model", model, "--prompt", "the owl", "--max-new-tokens", "8"}));
  must_run(nemocube_in(dir.path(), {"convert", model, "copy", "--dtype", "bf16", "--verify"}));
  CHECK(read_json_file(dir / "copy/config.json")["per_layer_config"] == saved["per_layer_config"]);
  must_run(nemocube_in(dir.path(), {"inspect", "straight"}));
  const ProcessResult plain = nemocube_in(dir.path(), {"inspect", "--model", "copy"}),
                      json = nemocube_in(dir.path(), {"inspect", "--model", "copy", "--json"});
  must_run(plain);
  must_run(json);
  CHECK(plain.out.find("  block 5   moe of its own: n_routed_experts 4, num_experts_per_tok 1, "
                       "moe_intermediate_size 8\n") != std::string::npos);
  CHECK(parse_json(json.out, "inspect")["per_layer_config"] == saved["per_layer_config"]);
}

TEST_CASE("pruned models: the log has the experts of each layer; adapters, and ranks that divide all sizes") {
  const RunDir dir;
  write_pruned_config(dir / "model");
  must_run(dir.train(plus(four_steps, {"moe_metrics.enabled=true"})));
  for (const Json& line : read_jsonl(dir / "straight" / "training.jsonl")) {
    const Json& tokens = line.at("expert_tokens");
    REQUIRE(tokens.size() == 2);
    CHECK(tokens[0].size() == 6);
    CHECK(tokens[1].size() == 4);
  }
  const ProcessResult page = nemocube_in(dir.path(), {"report", "straight"});
  must_run(page);

  const std::string base = (dir / "straight/LATEST/model").string();
  must_run(dir.train(
      plus(four_steps, {"model._target_=nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
                        "model.config=null", "model.pretrained_model_name_or_path=" + base,
                        "model.moe.expert_bias_update_rate=0", "checkpoint.checkpoint_dir=adapted",
                        "peft.match_all_linear=true", "peft.dim=4", "peft.moe_rank_scaling=true"})));
  must_run(
      nemocube_in(dir.path(), {"convert", base, "merged", "--adapter", "adapted", "--merge", "--verify"}));

  const ProcessResult refused = nemocube_in(
      dir.path(), {"train", "--check", "recipe.yaml", "--ranks", "6", "--set", "distributed.ep_size=6"});
  CHECK(refused.exit_code == 2);
  CHECK(refused.err.find("distributed.ep_size is 6; n_routed_experts of block 5 is 4") != std::string::npos);
  const ProcessResult plan =
      nemocube_in(dir.path(), {"plan", "recipe.yaml", "--ranks", "4", "--set", "distributed.ep_size=2",
                               "--set", "distributed.tp_size=2"});
  must_run(plan);
}
