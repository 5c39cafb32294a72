#pragma once
#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "data/json/json.h"
#include "data/json/test_dir.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"

/// Runs of the program on small models, and what they leave behind.
namespace nemocube::testing {

/// 73 thousand parameters, every block kind, the vocabulary of data/samples/tokenizer.
inline void write_tiny_config(const std::filesystem::path& dir) {
  std::filesystem::create_directories(dir);
  spit(dir / "config.json", R"({"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h",
    "hybrid_override_pattern": "ME*-", "vocab_size": 2048, "hidden_size": 16, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 24, "mamba_num_heads": 4,
    "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 8, "chunk_size": 16, "n_routed_experts": 6,
    "num_experts_per_tok": 2, "moe_intermediate_size": 12, "moe_shared_expert_intermediate_size": 16,
    "n_shared_experts": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2})");
}

/// Fresh weights, shuffled questions in packs of 192 tokens, two microbatches a step, 12 steps in two epochs;
/// run in a directory with the configuration in `model/`.
inline std::string small_recipe() {
  return R"(seed: 7
step_scheduler:
  {global_batch_size: 4, local_batch_size: 2, max_steps: 12, num_epochs: 2, ckpt_every_steps: 5,
   val_every_steps: 3, save_checkpoint_every_epoch: false}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_config
  config: {pretrained_model_name_or_path: model}
  torch_dtype: f32
  moe: {expert_bias_update_rate: 0.001, aux_loss_coeff: 0.01}
tokenizer: {pretrained_model_name_or_path: samples/tokenizer}
checkpoint: {enabled: true, checkpoint_dir: straight}
dataset: {_target_: squad, dataset_name: samples/train.json, limit_dataset_samples: 48}
validation_dataset: {_target_: squad, dataset_name: samples/validation.json, limit_dataset_samples: 4}
packed_sequence: {packed_sequence_size: 192}
dataloader: {shuffle: true}
optimizer: {_target_: torch.optim.AdamW, lr: 0.01, betas: [0.9, 0.98], weight_decay: 0.1}
lr_scheduler: {lr_decay_style: cosine, lr_warmup_steps: 3, min_lr: 0.0001}
clip_grad_norm: {max_norm: 1.0}
)";
}

/// Threads of the runs sleep at barriers: on a machine that does other work as well, spinning ones make steps
/// of less than a millisecond a hundred times longer.
inline void wait_politely() { ::setenv("OMP_WAIT_POLICY", "passive", 0); }

/// A directory with recipe.yaml, the configuration and the sample data.
class RunDir : public TestDir {
 public:
  RunDir() {
    write_tiny_config(*this / "model");
    std::filesystem::create_directory_symlink(source_dir() / "data" / "samples", *this / "samples");
    spit(*this / "recipe.yaml", small_recipe());
    wait_politely();
  }
  ProcessResult train(const std::vector<std::string>& overrides = {}) const {
    return run_process(train_command(overrides), path());
  }
  static std::vector<std::string> train_command(const std::vector<std::string>& overrides) {
    std::vector<std::string> command{program(), "train", "recipe.yaml"};
    for (const std::string& o : overrides) {
      command.emplace_back("--set");
      command.push_back(o);
    }
    return command;
  }
};

/// More steps than a test could wait for, one checkpoint at the end.
inline const std::vector<std::string> endless{
    "step_scheduler.max_steps=100000", "step_scheduler.num_epochs=100000",
    "step_scheduler.ckpt_every_steps=100000", "step_scheduler.val_every_steps=null", "lr_scheduler=null"};

/// Waits for the first step of a run, at most a minute.
inline void wait_for_steps(const RunDir& dir) {
  for (int i = 0; i < 6000 && !std::filesystem::exists(dir / "straight" / "training.jsonl"); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

inline std::vector<Json> read_jsonl(const std::filesystem::path& path) {
  std::vector<Json> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) lines.push_back(parse_json(line, path.string()));
  return lines;
}

/// What a log says that does not depend on clocks, memory, and the build.
inline std::vector<std::string> repeatable(const std::filesystem::path& log) {
  std::vector<std::string> lines;
  for (Json line : read_jsonl(log)) {
    for (const char* key :
         {"version", "layout", "timestamp", "tps", "tps_per_gpu", "mem", "positions_per_second",
          "content_tokens_per_second", "label_tokens_per_second", "samples_per_second", "data_seconds",
          "communication_seconds", "communication_waiting_seconds"})
      line.erase(key);
    lines.push_back(dump_json(line, -1));
  }
  return lines;
}

/// Contents of the files of a checkpoint by relative path, but for what tells of its history: the recipe,
/// which names directories, the origin in the state, and the checksums of both.
inline std::map<std::string, std::string> contents(const std::filesystem::path& checkpoint) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(checkpoint))
    if (const std::string name = entry.path().filename().string();
        entry.is_regular_file() && name != "config.yaml" && name != "checksums.json") {
      std::string text = slurp(entry.path());
      if (name == "state.json") {
        Json state = parse_json(text, name);
        state.erase("origin");
        text = dump_json(state);
      }
      files[std::filesystem::relative(entry.path(), checkpoint).string()] = text;
    }
  return files;
}

/// Four steps; checkpoints and validations after every second one.
inline const Words four_steps{"step_scheduler.max_steps=4", "step_scheduler.ckpt_every_steps=2",
                              "step_scheduler.val_every_steps=2"};

/// The program with these arguments, in a directory.
inline ProcessResult nemocube_in(const std::filesystem::path& dir, Words arguments) {
  arguments.insert(arguments.begin(), program());
  return run_process(arguments, dir);
}

/// The run, which must have ended well.
inline ProcessResult must_run(ProcessResult run) {
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  return run;
}

/// One field of every line of a log.
inline std::vector<double> logged(const std::filesystem::path& log, const char* field) {
  std::vector<double> values;
  for (const Json& line : read_jsonl(log)) values.push_back(line.at(field));
  return values;
}

/// Takes the losses out of a checkpoint, as a kill between the checkpoint and its validation leaves it.
inline void remove_losses(const std::filesystem::path& checkpoint) {
  std::filesystem::remove(checkpoint / "losses.json");
  Json sums = read_json_file(checkpoint / "checksums.json");
  CHECK(sums["crc32c"].erase("losses.json") == 1);
  spit(checkpoint / "checksums.json", dump_json(sums));
}

/// Names of the files that differ or exist on one side only; empty when two checkpoints are alike.
inline std::string differences(const std::filesystem::path& a, const std::filesystem::path& b) {
  const auto left = contents(a), right = contents(b);
  std::string names;
  for (const auto& [name, bytes] : left) {
    const auto other = right.find(name);
    if (other == right.end() || other->second != bytes) names += name + " ";
  }
  for (const auto& [name, bytes] : right)
    if (!left.contains(name)) names += name + " ";
  return names;
}

}  // namespace nemocube::testing
