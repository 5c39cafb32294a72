#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;

std::string name_of_step(const Json& line) {
  return cat("epoch_", line["epoch"].get<int>(), "_step_", line["step"].get<int>());
}

// The checkpoint of the saved step with the lowest loss in the validation log.
std::string best_saved(const fs::path& dir) {
  double lowest = std::numeric_limits<double>::infinity();
  std::string best;
  for (const Json& line : read_jsonl(dir / "validation.jsonl")) {
    if (!fs::exists(dir / name_of_step(line)) || line["val_loss"] >= lowest) continue;
    lowest = line["val_loss"];
    best = name_of_step(line);
  }
  return best;
}

}  // namespace

TEST_CASE("checkpoints: LOWEST_VAL is the best saved step, whatever steps between were") {
  const RunDir dir;
  const std::vector<std::string> often{"step_scheduler.val_every_steps=1",
                                       "step_scheduler.ckpt_every_steps=4"};
  // Without learning no step is better than the first, which is not saved.
  const std::vector<std::string> still{"optimizer.lr=0", "lr_scheduler=null",
                                       "model.moe.expert_bias_update_rate=0"};
  for (const bool learns : {true, false}) {
    CAPTURE(learns);
    const fs::path runs = dir / (learns ? "learns" : "still");
    std::vector<std::string> overrides = often;
    if (!learns) overrides.insert(overrides.end(), still.begin(), still.end());
    overrides.push_back("checkpoint.checkpoint_dir=" + runs.string());
    const ProcessResult run = dir.train(overrides);
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    CHECK(read_jsonl(runs / "validation.jsonl").size() == 12);
    REQUIRE(fs::is_symlink(runs / "LOWEST_VAL"));
    CHECK(fs::read_symlink(runs / "LOWEST_VAL") == best_saved(runs));
    if (!learns) CHECK(best_saved(runs) == "epoch_0_step_3");
  }
}

TEST_CASE("checkpoints: named by step and epoch of the log, at the end of an epoch as well") {
  const RunDir dir;
  const ProcessResult run = dir.train({"step_scheduler.ckpt_every_steps=1"});
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  std::size_t saved = 0;
  for (const std::string& name : names_in(dir / "straight")) saved += name.starts_with("epoch_");
  CHECK(saved == 12);
  const auto log = read_jsonl(dir / "straight" / "training.jsonl");
  REQUIRE(log.size() == 12);
  CHECK(log.back()["epoch"] == 1);
  std::string end_of_epoch;
  for (const Json& line : log) {
    CHECK(fs::exists(dir / "straight" / name_of_step(line) / "state.json"));
    if (line["epoch"] == 0) end_of_epoch = name_of_step(line);
  }
  // And from there the next epoch begins as it did.
  REQUIRE(dir.train({"step_scheduler.ckpt_every_steps=1", "checkpoint.checkpoint_dir=resumed",
                     cat("checkpoint.restore_from=straight/", end_of_epoch)})
              .exit_code == 0);
  const std::string last = name_of_step(log.back());
  CHECK(differences(dir / "straight" / last, dir / "resumed" / last) == "");
}

TEST_CASE("checkpoints: a run that was taken back to an older one goes on from what it wrote itself") {
  const RunDir dir;
  const auto train = [&](std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), {"step_scheduler.ckpt_every_steps=2", "lr_scheduler=null"});
    const ProcessResult run = dir.train(overrides);
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    return run.err;
  };
  const fs::path runs = dir / "straight";
  train({});
  const std::string back =
      train({"checkpoint.restore_from=epoch_0_step_3", "step_scheduler.max_steps=6", "optimizer.lr=0.02"});
  CHECK(back.find("later steps than the one resumed from") != std::string::npos);
  CHECK(back.find("moved to straight/abandoned/epoch_1_step_11") != std::string::npos);
  CHECK(names_in(runs / "abandoned") == std::vector<std::string>{"epoch_0_step_5", "epoch_1_step_11",
                                                                 "epoch_1_step_7", "epoch_1_step_9",
                                                                 "training.jsonl", "validation.jsonl"});
  CHECK(fs::read_symlink(runs / "LATEST") == "epoch_0_step_5");
  CHECK(fs::read_symlink(runs / "LOWEST_VAL") == best_saved(runs));
  CHECK(differences(runs / "epoch_0_step_5", runs / "abandoned" / "epoch_0_step_5") != "");
  const std::string on = train({"step_scheduler.max_steps=8"});
  CHECK(on.find("resumed from straight/epoch_0_step_5, which has 6 steps done") != std::string::npos);
  CHECK(read_jsonl(runs / "training.jsonl").size() == 8);
}
