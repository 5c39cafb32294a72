#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

// The keys of `checkpoint` that say what a run takes from a checkpoint. Without them it goes on with the same
// bits (resume_test.cpp).

namespace {

namespace fs = std::filesystem;
using Overrides = std::vector<std::string>;

class Resumed {
 public:
  /// A run of twelve steps with a checkpoint after five.
  Resumed() {
    const ProcessResult run = dir_.train();
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    straight_ = read_jsonl(dir_ / "straight" / "training.jsonl");
    REQUIRE(straight_.size() == 12);
  }
  /// From that checkpoint, in a new folder, which is `folder` then.
  ProcessResult run(const std::string& folder, const Overrides& overrides) const {
    Overrides all{"checkpoint.checkpoint_dir=" + folder,
                  "checkpoint.restore_from=" + (dir_ / "straight" / "epoch_0_step_4").string()};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return dir_.train(all);
  }
  std::vector<Json> log_of(const std::string& folder, const Overrides& overrides) const {
    const ProcessResult result = run(folder, overrides);
    CAPTURE(result.err);
    REQUIRE(result.exit_code == 0);
    return read_jsonl(dir_ / folder / "training.jsonl");
  }
  const Json& straight(std::size_t step) const { return straight_[step]; }
  const RunDir& dir() const { return dir_; }

 private:
  RunDir dir_;
  std::vector<Json> straight_;
};

bool same(const Json& a, const Json& b, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (a[key] != b[key]) return false;
  return true;
}

}  // namespace

TEST_CASE("resume keys: what is not loaded begins anew, and the rest goes on") {
  const Resumed resumed;
  const Json &next = resumed.straight(5), &first = resumed.straight(0);
  {
    const auto log = resumed.log_of("no_optim", {"checkpoint.load_optim=false"});
    REQUIRE(log.size() == 7);
    CHECK(same(log[0], next, {"step", "loss", "grad_norm", "lr", "num_tokens_per_step"}));
    CHECK_FALSE(same(log[1], resumed.straight(6), {"loss"}));  // moments have been zero
  }
  {
    const auto log = resumed.log_of("no_scheduler", {"checkpoint.load_scheduler=false"});
    REQUIRE(log.size() == 7);
    CHECK(same(log[0], next, {"step", "loss", "grad_norm", "num_tokens_per_step"}));
    CHECK(same(log[0], first, {"lr"}));
    CHECK(same(log[6], resumed.straight(6), {"lr"}));
  }
  {
    const auto log = resumed.log_of("no_data", {"checkpoint.load_data=false"});
    REQUIRE(log.size() == 7);
    CHECK(same(log[0], next, {"step", "lr"}));
    CHECK(same(log[0], first,
               {"epoch", "num_tokens_per_step", "num_label_tokens"}));  // the rows of the first step
    CHECK_FALSE(same(log[0], first, {"loss"}));
  }
  {
    const auto log = resumed.log_of("finetuned", {"checkpoint.finetune=true"});
    REQUIRE(log.size() == 12);
    CHECK(same(log[0], first, {"step", "lr", "epoch", "num_tokens_per_step"}));
    // The weights are those after five steps: the same rows as without load_data.
    CHECK(same(log[0], read_jsonl(resumed.dir() / "no_data" / "training.jsonl")[0], {"loss", "grad_norm"}));
  }
}

TEST_CASE("resume keys: a run of another length keeps the schedule of the checkpoint, and says so") {
  const Resumed resumed;
  const std::vector<std::string> steps{"step_scheduler.num_epochs=null", "step_scheduler.max_steps=24"};
  const auto with = [&](const std::string& more) {
    Overrides overrides = steps;
    if (!more.empty()) overrides.push_back(more);
    return overrides;
  };
  const std::string kept = "the learning-rate schedule of the checkpoint goes on";
  const auto rates = [&](const std::string& folder) {
    std::vector<double> all;
    for (const Json& line : read_jsonl(resumed.dir() / folder / "training.jsonl")) all.push_back(line["lr"]);
    return all;
  };
  const ProcessResult longer = resumed.run("longer", with(""));
  CAPTURE(longer.err);
  REQUIRE(longer.exit_code == 0);
  CHECK(longer.err.find(cat(kept, ", which is for 12 steps: step 5 has the rate 0.00884")) !=
        std::string::npos);
  CHECK(longer.err.find("a schedule for the 24 steps of now it would have 0.00978") != std::string::npos);
  CHECK(longer.err.find("lr_scheduler.lr_decay_steps=24") != std::string::npos);
  const std::vector<double> curve = rates("longer");
  REQUIRE(curve.size() == 19);
  for (std::size_t i = 0; i < 7; ++i) CHECK(curve[i] == resumed.straight(5 + i)["lr"]);
  for (std::size_t i = 7; i < curve.size(); ++i) CHECK(curve[i] == 0.0001);

  // A second start of the longer run knows the length of the first.
  std::string saved;
  for (const std::string& name : names_in(resumed.dir() / "longer"))
    if (name.ends_with("_step_14")) saved = name;
  const ProcessResult again = resumed.dir().train(
      {steps[0], steps[1], "checkpoint.checkpoint_dir=again", "checkpoint.restore_from=longer/" + saved});
  CAPTURE(again.err);
  REQUIRE(again.exit_code == 0);
  CHECK(again.err.find(cat(kept, ", which is for 12 steps: step 15 has the rate 0.0001")) !=
        std::string::npos);
  CHECK(rates("again") == std::vector<double>(9, 0.0001));

  // What the recipe says counts.
  const ProcessResult stretched = resumed.run("stretched", with("lr_scheduler.lr_decay_steps=24"));
  CAPTURE(stretched.err);
  REQUIRE(stretched.exit_code == 0);
  CHECK(stretched.err.find(kept) == std::string::npos);
  CHECK(rates("stretched")[0] > 0.0095);
  // A new schedule is for the run of now.
  const ProcessResult anew = resumed.run("anew", with("checkpoint.load_scheduler=false"));
  CAPTURE(anew.err);
  CHECK(anew.err.find(kept) == std::string::npos);
  CHECK(rates("anew").back() > 0.0001);
  const ProcessResult constant = resumed.run("constant", with("lr_scheduler=null"));
  CHECK(constant.err.find(kept) == std::string::npos);
}

TEST_CASE("resume keys: other batches are refused with the way out, which works") {
  const Resumed resumed;
  const Overrides other{"step_scheduler.global_batch_size=2", "step_scheduler.local_batch_size=1"};
  const ProcessResult refused = resumed.run("refused", other);
  CAPTURE(refused.err);
  CHECK(refused.exit_code == 2);
  CHECK(refused.err.find("global_batch_size") != std::string::npos);
  CHECK(refused.err.find("checkpoint.load_data") != std::string::npos);
  Overrides allowed = other;
  allowed.emplace_back("checkpoint.load_data=false");
  CHECK(resumed.log_of("allowed", allowed).size() == 7);
}

TEST_CASE("resume keys: another optimizer's state is refused by name, or taken as far as it goes") {
  const Resumed resumed;
  const std::string sgd = "optimizer={_target_: torch.optim.SGD, lr: 0.05, momentum: 0.9}";
  const ProcessResult refused = resumed.run("refused", {sgd});
  CAPTURE(refused.err);
  CHECK(refused.exit_code == 2);
  for (const char* text : {"momentum.backbone.embeddings.weight", "exp_avg.backbone.embeddings.weight",
                           "missing in the checkpoint", "not in the run"})
    CHECK_MESSAGE(refused.err.find(text) != std::string::npos, text);
  const ProcessResult warned = resumed.run("warned", {sgd, "checkpoint.strictness=log_all"});
  CAPTURE(warned.err);
  CHECK(warned.exit_code == 0);
  CHECK(warned.err.find("momentum.backbone.embeddings.weight") != std::string::npos);
  const ProcessResult silent = resumed.run("silent", {sgd, "checkpoint.strictness=ignore_all"});
  CHECK(silent.exit_code == 0);
  CHECK(silent.err.find("momentum.") == std::string::npos);
}
