#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/support/mpirun.h"
#include "tests/support/paths.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

// Runs with noise on the embeddings (neftune).

namespace {

namespace fs = std::filesystem;

/// Unpacked rows of several lengths, two in a forward pass, without losses that depend on which rows are
/// together.
const Words rows{"packed_sequence.packed_sequence_size=0",
                 "dataset.limit_dataset_samples=32",
                 "step_scheduler.max_steps=4",
                 "step_scheduler.ckpt_every_steps=4",
                 "step_scheduler.val_every_steps=null",
                 "lr_scheduler=null",
                 "model.moe.aux_loss_coeff=0",
                 "model.moe.expert_bias_update_rate=0",
                 "neftune=20"};

void check_close(const std::vector<double>& got, const std::vector<double>& want) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < want.size(); ++i) CHECK(got[i] == doctest::Approx(want[i]).epsilon(1e-6));
}

}  // namespace

TEST_CASE("noise: training has it and validation has not") {
  const RunDir dir;
  const Words still = plus(rows, {"optimizer.lr=0", "optimizer.weight_decay=0"});
  std::vector<double> losses, validation;
  for (const char* alpha : {"20", "0"}) {
    const fs::path log = dir / cat("alpha", alpha);
    const ProcessResult run =
        dir.train(plus(still, {cat("neftune=", alpha), cat("checkpoint.checkpoint_dir=", log.string())}));
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    losses.push_back(logged(log / "training.jsonl", "loss").at(0));
    validation.push_back(logged(log / "validation.jsonl", "val_loss").at(0));
  }
  CHECK(losses[0] != doctest::Approx(losses[1]).epsilon(1e-5));
  CHECK(validation[0] == validation[1]);
  const ProcessResult checked = run_process(
      {program(), "train", "recipe.yaml", "--check", "--set", "neftune.noise_alpha=5"}, dir.path());
  CHECK(checked.exit_code == 0);
  CHECK(checked.out.find("\nneftune: 5.0\n") != std::string::npos);
}

TEST_CASE("noise: runs on two ranks have the losses of one, and a pipeline pads the rows that it divides") {
  const RunDir dir;
  const ProcessResult one = dir.train(plus(rows, {"checkpoint.checkpoint_dir=one"}));
  CAPTURE(one.err);
  REQUIRE(one.exit_code == 0);
  const auto want = logged(dir / "one" / "training.jsonl", "loss");
  const std::vector<std::pair<const char*, Words>> grids{
      {"tp", {"distributed.tp_size=2"}},
      {"sp", {"distributed.tp_size=2", "distributed.sequence_parallel=true"}},
      {"cp", {"distributed.cp_size=2"}},
      {"pp", {"distributed.pp_size=2", "distributed.pipeline={pp_microbatch_size: 1}"}}};
  for (const auto& [name, grid] : grids) {
    CAPTURE(name);
    const ProcessResult two = run_process(
        mpirun(2, RunDir::train_command(plus(plus(rows, grid), {"distributed.strategy=fsdp2",
                                                                cat("checkpoint.checkpoint_dir=", name)}))),
        dir.path());
    CAPTURE(two.err);
    REQUIRE(two.exit_code == 0);
    check_close(logged(dir / name / "training.jsonl", "loss"), want);
  }
}
