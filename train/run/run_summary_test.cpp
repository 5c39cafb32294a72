#include "train/run/run_summary.h"

#include <doctest/doctest.h>

#include <csignal>

using namespace nemocube;

TEST_CASE("summary: a whole run, a resumed one, a stopped one, and one with nothing to do") {
  RunResult r;
  r.steps_done = r.total_steps = 50;
  r.tokens = 222'000;
  r.seconds = 185;
  r.first_loss = 2.5;
  r.last_loss = 0.125;
  r.checkpoint = "runs/x/epoch_0_step_49";
  CHECK(summary(r) ==
        "done: 50 steps in 3m05s, 1.2k tokens/s, loss 2.5 at step 0 and 0.125 at step 49, 0 skipped steps; "
        "model in runs/x/epoch_0_step_49/model");
  r.first_step = 49;
  r.skipped_steps = 1;
  CHECK(summary(r) ==
        "done: 50 steps, 1 of them in this run in 3m05s, 1.2k tokens/s, loss 2.5 at step 49, 1 skipped step; "
        "model in runs/x/epoch_0_step_49/model");
  RunResult stopped = r;
  stopped.first_step = 0;
  stopped.steps_done = 1;
  stopped.signal = SIGTERM;
  stopped.checkpoint.clear();
  CHECK(summary(stopped).starts_with("stopped by signal 15 (Terminated): 1 step of 50 in 3m05s, "));
  CHECK(summary(stopped).ends_with(", loss 2.5 at step 0, 1 skipped step; no checkpoint was written"));
  RunResult early = r;
  early.first_step = 0;
  early.steps_done = 30;
  early.early_stopping = "it got no better";
  CHECK(summary(early).starts_with(
      "done: 30 steps of 50 (early stopping: it got no better) in 3m05s, 1.2k tok"));
  RunResult nothing;
  nothing.first_step = nothing.steps_done = nothing.total_steps = 4;
  nothing.checkpoint = "c";
  CHECK(summary(nothing) == "done: 4 steps, 0 of them in this run, 0 skipped steps; model in c/model");
}
