#include <nlohmann/json.hpp>

#include "tests/bad_input/refused.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {
namespace fs = std::filesystem;

std::vector<Json> log_of(const fs::path& dir) { return read_jsonl(dir / "checkpoints" / "training.jsonl"); }

ProcessResult train(const fs::path& dir, const std::vector<std::string>& overrides) {
  wait_politely();
  return run_process(RunDir::train_command(overrides), dir);
}
}  // namespace

TEST_CASE(
    "not finite: every step of a model with NaN is skipped, counted, and ends the run after "
    "max_nonfinite_steps") {
  const ModelDir dir("train20");
  edit_safetensors(dir / "model.safetensors", [](RawSafetensors& f) {
    f.fill("backbone.embeddings.weight", std::numeric_limits<float>::quiet_NaN());
  });
  check_refused(dir.path(), train_with({"step_scheduler.max_nonfinite_steps=3"}),
                {"step 2", "3 steps in a row", "max_nonfinite_steps"}, true);
  const std::vector<Json> log = log_of(dir.path());
  REQUIRE(log.size() == 3);
  for (std::size_t i = 0; i < log.size(); ++i) {
    CHECK(log[i]["skipped"] == true);
    CHECK(log[i]["skipped_steps"] == i + 1);
    CHECK(log[i]["loss"] == "NaN");
    CHECK(log[i]["lr"] == log[0]["lr"]);  // skipped steps do not move the schedule
  }
}

TEST_CASE("not finite: a learning rate that explodes ends the run after max_nonfinite_steps") {
  const ModelDir dir("train20");
  check_refused(dir.path(),
                train_with({"lr_scheduler=null", "optimizer.lr=100",
                            "optimizer.param_group_overrides=[{pattern: '.', lr_mult: 10000}]",
                            "step_scheduler.max_nonfinite_steps=2"}),
                {"2 steps in a row", "optimizer.lr"}, true);
  const std::vector<Json> log = log_of(dir.path());
  REQUIRE(log.size() >= 3);
  CHECK(log[0]["skipped"] == false);
  CHECK(log.back()["skipped_steps"] == 2);
}

TEST_CASE("not finite: an update that overflows is not saved, and the last good checkpoint is named") {
  const ModelDir dir("train20");
  edit_safetensors(dir / "model.safetensors", [](RawSafetensors& f) {
    // Gradients of 1e21 are finite in f32, their squares in AdamW's second moment are not.
    const Json& offsets = f.header.at("lm_head.weight").at("data_offsets");
    for (auto at = offsets[0].get<std::size_t>(); at < offsets[1].get<std::size_t>(); at += sizeof(float)) {
      float value = 0;
      std::memcpy(&value, f.data.data() + at, sizeof value);
      value *= 1e21F;
      std::memcpy(f.data.data() + at, &value, sizeof value);
    }
  });
  const std::vector<std::string> common{"checkpoint.enabled=true", "step_scheduler.ckpt_every_steps=1",
                                        "checkpoint.max_recent_checkpoints=1"};
  std::vector<std::string> unclipped = common;
  unclipped.emplace_back("clip_grad_norm.max_norm=0");
  check_refused(dir.path(), train_with(unclipped),
                {"step 0: ", "not finite", "'backbone.embeddings.weight'", "no checkpoint"}, true);
  std::vector<std::string> clipped = common;
  clipped.emplace_back("step_scheduler.max_steps=2");
  const ProcessResult run = train(dir.path(), clipped);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  check_refused(dir.path(), train_with(unclipped),
                {"step 2: ", "not finite", "2 steps done", "checkpoints/epoch_0_step_1"}, true);
}

TEST_CASE("not finite: skipped steps change no weight: the checkpoint has the bytes of the model") {
  const ModelDir dir("train20");
  edit_safetensors(dir / "model.safetensors", [](RawSafetensors& f) {
    f.fill("lm_head.weight", std::numeric_limits<float>::infinity());
  });
  const ProcessResult run = train(dir.path(), {"step_scheduler.max_nonfinite_steps=0",
                                               "step_scheduler.max_steps=2", "checkpoint.enabled=true"});
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const RawSafetensors before = RawSafetensors::read(dir / "model.safetensors");
  const RawSafetensors after =
      RawSafetensors::read(dir / "checkpoints" / "epoch_0_step_1" / "model" / "model.safetensors");
  for (const auto& [name, entry] : before.header.items()) {
    if (name == "__metadata__") continue;
    CAPTURE(name);
    REQUIRE(after.header.contains(name));
    const auto bytes = [&](const RawSafetensors& f) {
      const Json& o = f.header.at(name).at("data_offsets");
      return f.data.substr(o[0].get<std::size_t>(), o[1].get<std::size_t>() - o[0].get<std::size_t>());
    };
    const bool same_bytes = bytes(before) == bytes(after);
    CHECK(same_bytes);
  }
}

TEST_CASE("no labels: a global batch without labels is skipped and counted, and the run goes on") {
  const ModelDir dir("train20");
  edit_safetensors(dir / "tokens.safetensors", [](RawSafetensors& f) {
    // The first step takes four of the eighty rows.
    const Json& offsets = f.header.at("labels").at("data_offsets");
    const auto begin = offsets[0].get<std::size_t>(), size = offsets[1].get<std::size_t>() - begin;
    const std::int64_t ignored = -100;
    for (std::size_t at = 0; at < size / 20; at += 8) std::memcpy(f.data.data() + begin + at, &ignored, 8);
  });
  const ProcessResult run = train(dir.path(), {"step_scheduler.max_steps=3"});
  CAPTURE(run.err);
  CHECK(run.exit_code == 0);
  const std::vector<Json> log = log_of(dir.path());
  REQUIRE(log.size() == 3);
  CHECK(log[0]["skipped"] == true);
  CHECK(log[0]["num_label_tokens"] == 0);
  CHECK(log[1]["skipped"] == false);
  CHECK(log[2]["skipped_steps"] == 1);
}

TEST_CASE("longer run: one that ended with its epoch goes on with the next epoch, without an empty step") {
  const ModelDir dir("train20");
  std::vector<std::string> overrides{"checkpoint.enabled=true", "lr_scheduler=null"};
  REQUIRE(train(dir.path(), overrides).exit_code == 0);
  overrides.insert(overrides.end(), {"step_scheduler.max_steps=22", "step_scheduler.num_epochs=2"});
  const ProcessResult run = train(dir.path(), overrides);
  CAPTURE(run.err);
  CHECK(run.exit_code == 0);
  const std::vector<Json> log = log_of(dir.path());
  REQUIRE(log.size() == 22);
  CHECK(log[19]["epoch"] == 0);
  CHECK(log[20]["epoch"] == 1);
  CHECK(log[20]["skipped"] == false);
  CHECK(log[20]["num_label_tokens"] > 0);
}
