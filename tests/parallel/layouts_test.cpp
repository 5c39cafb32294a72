#include <doctest/doctest.h>

#include <cstdlib>

#include "tests/parallel/rank_runs.h"
#include "tests/parallel/same_runs.h"
#include "tests/support/mpirun.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

// Runs that begin on one layout of ranks and go on on another.

namespace {

namespace fs = std::filesystem;

struct Layout {
  int ranks;
  Words overrides;
};

const Layout layouts[] = {
    {1, {}},
    {2, {"distributed.strategy=ddp"}},
    {2, {}},  // ZeRO-3
    {4, {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=1"}},
    {4, {"distributed.strategy=megatron_fsdp", "distributed.zero_dp_strategy=2"}},
    {4, {"distributed.dp_replicate_size=2"}},
    {2, {"distributed.tp_size=2", "distributed.sequence_parallel=true"}},
    {4, {"distributed.tp_size=4", "distributed.ep_size=2", "distributed.expert_tp_size=2"}},
    {4, {"distributed.tp_size=2", "distributed.cp_size=2", "distributed.ep_size=2"}},
    {2,
     {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=zbv",
      "distributed.pipeline.pp_microbatch_size=1"}},
    {4,
     {"distributed.pp_size=2", "distributed.ep_size=2", "distributed.pipeline.pp_schedule=1f1b",
      "distributed.pipeline.pp_microbatch_size=1"}},
    {2, {"distributed.ep_size=2"}},
};
constexpr int count = std::size(layouts);

fs::path run(const fs::path& dir, const Layout& layout, const std::string& name, const Words& overrides) {
  const auto result = run_process(
      mpirun(layout.ranks, RunDir::train_command(plus(
                               plus({"step_scheduler.local_batch_size=1", "step_scheduler.max_steps=10",
                                     "lr_scheduler.lr_decay_steps=10", "step_scheduler.ckpt_every_steps=5",
                                     "checkpoint.checkpoint_dir=" + name},
                                    layout.overrides),
                               overrides))),
      dir);
  CAPTURE(name);
  CAPTURE(result.err);
  REQUIRE(result.exit_code == 0);
  return dir / name;
}

}  // namespace

TEST_CASE("layouts: a run goes on on another layout with the losses of one that never stopped") {
  const RunDir dir;
  const fs::path straight = run(dir.path(), layouts[0], "straight", {});
  for (int i = 0; i < count; ++i)
    run(dir.path(), layouts[i], cat("begun", i), {"step_scheduler.max_steps=5"});
  const bool all = std::getenv("NEMOCUBE_LAYOUTS") != nullptr;  // each of them from each, not one from each
  for (int i = 0; i < count; ++i)
    for (int j = 0; j < count; ++j) {
      if (!all && j != (i * 5 + 7) % count) continue;
      CAPTURE(i);
      CAPTURE(j);
      const std::string name = cat("resumed", i, "_", j), from = cat("begun", i, "/LATEST");
      const fs::path resumed = run(dir.path(), layouts[j], name, {"checkpoint.restore_from=" + from});
      check_same_runs(resumed, straight, 1e-5, 5);
      fs::remove_all(resumed);
    }
}
