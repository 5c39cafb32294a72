#include <doctest/doctest.h>

#include <cmath>
#include <sstream>

#include "data/hf/hf_weights.h"
#include "model/test_configs.h"
#include "tests/support/mpirun.h"
#include "tests/support/paths.h"
#include "tests/training/run_support.h"
#include "train/model_io/model_io.h"

using namespace nemocube;
using namespace nemocube::testing;

// The recipes of this repository for process grids, against one rank.

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

Words train(const fs::path& recipe, const Words& overrides) {
  Words words{program(), "train", recipe.string()};
  for (const std::string& o : overrides) words.insert(words.end(), {"--set", o});
  return words;
}

std::vector<Json> log_of(const Words& command, const fs::path& folder, const fs::path& run) {
  wait_politely();
  const ProcessResult result = run_process(command, folder);
  CAPTURE(result.err);
  REQUIRE(result.exit_code == 0);
  return read_jsonl(run / "training.jsonl");
}

double relative(double got, double want) { return std::abs(got - want) / std::abs(want); }

void check_same_steps(const std::vector<Json>& got, const std::vector<Json>& want) {
  REQUIRE(!want.empty());
  REQUIRE(got.size() >= want.size());
  for (std::size_t i = 0; i < want.size(); ++i)
    for (const char* key : {"loss", "grad_norm", "num_tokens_per_step", "num_label_tokens"}) {
      CAPTURE(i);
      CAPTURE(key);
      CHECK(relative(got[i][key], want[i][key]) <= 1e-5);
    }
}

/// A model directory as the recipe of Nemotron 3 Nano wants it: the pattern of its 52 blocks, but small and
/// fresh.
void write_small_nano(const fs::path& directory) {
  const TestDir config;
  spit(config / "config.json",
       cat(R"({"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h",
    "hybrid_override_pattern": ")",
           nano_30b, R"(", "vocab_size": 2048, "hidden_size": 16, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 24, "mamba_num_heads": 4,
    "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 8, "chunk_size": 64, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 8, "moe_shared_expert_intermediate_size": 16,
    "n_shared_experts": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2})"));
  LoadedModel made = make_model(config.path(), DType::f32, 3, Device::cpu);
  for (const char* file : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"})
    made.files.other_files[file] = slurp(source_dir() / "data" / "samples" / "tokenizer" / file);
  save_hf_weights(directory, named_tensors(*made.model), made.files);
}

/// The command by which `make train-grid` trains, with more overrides.
Words command_of_make(const Words& overrides) {
  const fs::path& build = build_dir();
  const ProcessResult make =
      run_process({"make", "--dry-run", "train-grid", "BUILD=" + build.string()}, source_dir());
  CAPTURE(make.err);
  REQUIRE(make.exit_code == 0);
  std::istringstream lines(make.out);
  std::string command;
  while (std::getline(lines, command) && command.find("mpirun") == command.npos) {
  }
  REQUIRE(!command.empty());
  for (const std::string& o : overrides) command += " --set " + o;
  return {"sh", "-c", command};
}

}  // namespace

TEST_CASE("grid recipes: the job of make train-grid has the losses of make train") {
  const TestDir dir;
  const auto start = [&](const std::string& name) {
    return Words{"step_scheduler.max_steps=10", "lr_scheduler.lr_decay_steps=518",
                 "validation_dataset=null",     "validation_dataset_train=null",
                 "checkpoint.enabled=false",    "checkpoint.checkpoint_dir=" + (dir / name).string()};
  };
  const auto one = log_of(train("configs/squad_tiny.yaml", start("one")), source_dir(), dir / "one");
  const auto grid = log_of(command_of_make(start("grid")), source_dir(), dir / "grid");
  REQUIRE(one.size() == 10);
  check_same_steps(grid, one);
  for (const Json& step : grid) {
    REQUIRE(step["expert_tokens"].size() == 2);  // MoE blocks
    for (const Json& layer : step["expert_tokens"]) CHECK(layer.size() == 8);
    CHECK(step["expert_imbalance"].size() == 2);
  }
  CHECK_FALSE(one[0].contains("expert_tokens"));
}

TEST_CASE("grid recipes: Nemotron 3 Nano on SQuAD, pipeline of 4 with experts on 2 ranks, on a small model") {
  const TestDir dir;
  write_small_nano(dir / "nano");
  const fs::path samples = source_dir() / "data" / "samples";
  const fs::path recipe = source_dir() / "configs" / "recipes" / "nemotron_nano_v3_pp_ep_squad.yaml";
  const auto paths = [&](const std::string& name) {
    return Words{"model.pretrained_model_name_or_path=nano",
                 "dataset.path=" + (samples / "train.json").string(),
                 "validation_dataset.path=" + (samples / "validation.json").string(),
                 "step_scheduler.max_steps=1",
                 "step_scheduler.val_every_steps=1",
                 "checkpoint.checkpoint_dir=" + name};
  };
  Words alone = paths("one");
  for (const char* section : {"distributed=null", "dist_env=null"}) alone.emplace_back(section);
  const auto one = log_of(train(recipe, alone), dir.path(), dir / "one");
  const auto grid = log_of(mpirun(8, train(recipe, paths("grid"))), dir.path(), dir / "grid");
  REQUIRE(one.size() == 1);
  check_same_steps(grid, one);
  REQUIRE(grid[0]["expert_tokens"].size() == 23);  // MoE blocks
  for (const Json& layer : grid[0]["expert_tokens"]) {
    std::int64_t tokens = 0;
    for (const Json& expert : layer) tokens += expert.get<std::int64_t>();
    CHECK(tokens == 2 * grid[0]["num_tokens_per_step"].get<std::int64_t>());  // each chooses 2 experts
  }
  const auto after_one = read_jsonl(dir / "one" / "validation.jsonl"),
             after_grid = read_jsonl(dir / "grid" / "validation.jsonl");
  REQUIRE(after_one.size() == 1);
  REQUIRE(after_grid.size() == 1);
  CHECK(relative(after_grid[0]["val_loss"], after_one[0]["val_loss"]) <= 1e-5);
}
