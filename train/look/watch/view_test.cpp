#include "train/look/watch/view.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "train/look/watch/text.h"

using namespace nemocube;

namespace {

constexpr double noon = 43200;

/// A run of 4 ranks in its 40th step of 100, as its logs would have it.
WatchedRun a_run() {
  WatchedRun run(1000);
  run.history_line(
      R"({"step": 0, "event": "start", "timestamp": "1970-01-01T11:50:00.000Z", "total_steps": 100, "parameters": 2603052,
          "dtype": "bf16", "ranks": 4, "layout": "pp 2, ep 2", "host": "node7", "version": "1"})");
  for (int step = 0; step < 40; ++step)
    run.training_line(cat(
        "{\"step\": ", step,
        ", \"epoch\": 1, \"timestamp\": \"1970-01-01T11:59:58.000Z\", \"loss\": ", 8 * std::exp(-0.05 * step),
        ", \"grad_norm\": 1.5, \"lr\": 0.0001, \"mem\": 1.25, \"tps\": ", step == 39 ? 4000 : 2000,
        ", \"tps_per_gpu\": 500, \"mfu\": 41.25, \"num_tokens_per_step\": 4000, "
        "\"skipped_steps\": 1}"));
  run.validation_line("default", R"({"step": 9, "val_loss": 3.5})");
  run.validation_line("default", R"({"step": 29, "val_loss": 2.25})");
  run.history_line(
      R"({"step": 30, "event": "checkpoint", "timestamp": "1970-01-01T11:58:00.000Z", "name": "epoch_0_step_29",
          "bytes": 31400000, "seconds": 0.2})");
  run.history_line(
      R"({"step": 31, "event": "warning", "timestamp": "1970-01-01T11:58:01.000Z", "rank": 2, "text": "the disk\n\u001b[2Jis slow"})");
  return run;
}

std::string text_of(const std::vector<std::string>& lines) {
  std::string text = "\n";
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::string shown_at(const WatchedRun& run, const ViewOptions& options, double now = noon,
                     std::optional<double> quiet = {}) {
  const auto lines = view("/runs/mine", run, {now, quiet}, options);
  CHECK(lines.size() <= options.rows);
  for (const std::string& line : lines) CHECK(columns_of(line) <= options.columns);
  return text_of(lines);
}

}  // namespace

TEST_CASE("view: 80 x 24") {
  CHECK(shown_at(a_run(), {80, 24}) == R"(
/runs/mine                                             running, last step 2s ago
2.6M parameters in bf16  4 ranks from node7  pp 2, ep 2
40 of 100 steps (40 %)  [#############--------------------]  epoch 1  1m58s left

loss 1.1382, lowest 1.1382 at step 39; last 40 steps
       8 |**
         |  ****
         |      ****
         |          *****
         |               *****
   4.188 |                    *******
         |                           ********
         |                                   **********
         |                                             **************
   1.138 |                                                           ***********
          step 0                                                              39
validation 2.2500 at step 29, before 3.5000, lowest 2.2500 at step 29

learning rate 0.0001              tokens/s      4.0k (mean 2.0k)
gradient norm 1.5                 step time     1.00 s (mean 1.98 s)
MFU           41.2 %              memory        1.25 GiB a rank
skipped steps 1                   tokens/s/rank 500
checkpoint    epoch_0_step_29, 2m00s ago (31.4 MB in 0.2 s, 157 MB/s)
warning 11:58:01 rank 2: the disk \u001b[2Jis slow
)");
}

TEST_CASE("view: 60 x 20 in UTF-8") {
  CHECK(shown_at(a_run(), {60, 20, true}) == R"(
/runs/mine                         running, last step 2s ago
2.6M parameters in bf16  4 ranks from node7  pp 2, ep 2
40 of 100 steps (40 %)  ██████░░░░░░░░░  epoch 1  1m58s left

loss 1.1382, lowest 1.1382 at step 39; last 40 steps
       8 │⠑⠢⢄⣀
         │    ⠉⠒⠤⢄⡀
         │        ⠈⠉⠒⠢⠤⣀⡀
         │              ⠈⠉⠒⠒⠤⠤⣀⣀
         │                      ⠉⠉⠑⠒⠒⠤⠤⠤⣀⣀⣀
   1.138 │                                 ⠉⠉⠉⠉⠒⠒⠒⠒⠢⠤⠤⠤⠤⢄⣀⣀⣀
          step 0                                          39
validation 2.2500 at step 29, before 3.5000, lowest 2.250...

learning rate 0.0001      tokens/s      4.0k (mean 2.0k)
gradient norm 1.5         step time     1.00 s (mean 1.98 s)
MFU           41.2 %      memory        1.25 GiB a rank
skipped steps 1           tokens/s/rank 500
checkpoint    epoch_0_step_29, 2m00s ago (31.4 MB in 0.2 ...
warning 11:58:01 rank 2: the disk \u001b[2Jis slow
)");
}

TEST_CASE("view: 200 x 50 has a larger curve") {
  WatchedRun run = a_run();
  for (int i = 0; i < 30; ++i) run.history_line(cat(R"({"event": "warning", "text": "number )", i, "\"}"));
  const std::string text = shown_at(run, {200, 50, true});
  CHECK(std::ranges::count(text, '\n') == 51);
  CHECK(text.find("number 29") != std::string::npos);
  CHECK(text.find("number 24") != std::string::npos);
  CHECK(text.find("number 23") == std::string::npos);
}

TEST_CASE("view: every size down to nothing") {
  WatchedRun run = a_run();
  run.history_line(cat(R"({"event": "error", "text": ")", std::string(5000, 'x'), "\"}"));
  for (std::size_t columns = 0; columns < 130; columns += 3)
    for (std::size_t rows = 0; rows < 40; rows += 3)
      for (const bool utf8 : {false, true}) shown_at(run, {columns, rows, utf8});
}

TEST_CASE("view: states of a run") {
  const auto state = [](const WatchedRun& run, double now, std::optional<double> quiet = {}) {
    return state_of(run, {now, quiet});
  };
  WatchedRun run(10);
  CHECK(state(run, noon) == "waiting: no training.jsonl yet");
  WatchMoment nowhere;
  nowhere.has_folder = false;
  CHECK(state_of(run, nowhere) == "waiting: no such directory yet");
  CHECK(shown_at(run, {80, 24}).find("/runs/mine ") == 1);
  run.history_line(R"({"event": "start", "timestamp": "1970-01-01T11:59:00.000Z", "total_steps": 9})");
  CHECK(state(run, noon) == "started 1m00s ago, no step yet");
  run.training_line(
      R"({"step": 0, "timestamp": "1970-01-01T11:59:57.000Z", "tps": 1, "num_tokens_per_step": 30})");
  CHECK(state(run, noon) == "running, last step 3s ago");
  CHECK(state(run, noon - 3600) == "running, last step 0s ago");    // the clocks differ
  CHECK(state(run, noon + 290) == "running, last step 4m53s ago");  // a step takes 30 seconds
  CHECK(state(run, noon + 300) == "silent for 5m03s");
  CHECK(state(run, noon + 300, 2.0) == "running, last step 2s ago");  // seen to grow, whatever its clock says
  CHECK(state(run, noon, 400.0) == "silent for 6m40s");
  run.history_line(R"({"event": "end", "signal": 0, "text": "done: 9 steps"})");
  CHECK(state(run, noon + 9999) == "done");
  CHECK(shown_at(run, {80, 24}).ends_with("done: 9 steps\n"));
  run.history_line(R"({"event": "end", "signal": 15, "text": "stopped"})");
  CHECK(state(run, noon) == "stopped by signal 15");
  run.history_line(R"({"event": "error", "text": "no memory"})");
  CHECK(state(run, noon) == "failed");
  CHECK(shown_at(run, {80, 24}).ends_with("no memory\n"));
}

TEST_CASE("view: colours for states and messages, when asked for") {
  const WatchedRun run = a_run();
  CHECK(shown_at(run, {80, 24}).find('\033') == std::string::npos);
  const auto lines = view("/runs/mine", run, {noon, {}}, {80, 24, false, true});
  CHECK(lines.front().starts_with("\033[32m/runs/mine "));
  CHECK(lines.front().ends_with("\033[m"));
  CHECK(lines.back().starts_with("\033[33mwarning "));
}

TEST_CASE("view: losses that are no numbers, and logs without a history") {
  WatchedRun run(10);
  run.training_line(R"({"step": 0, "loss": "NaN", "tps": 100, "tps_per_gpu": 50})");
  run.training_line(R"({"step": 1, "loss": "Infinity", "tps": null})");
  const std::string text = shown_at(run, {80, 24});
  CHECK(text.find("loss inf; last 2 steps") != std::string::npos);
  CHECK(text.find("2 steps done") != std::string::npos);
  CHECK(text.find("tokens/s      ? (mean ?)") != std::string::npos);
}

TEST_CASE("view: texts are cut, filled and broken by characters") {
  CHECK(columns_of("äöü") == 3);
  CHECK(cut("äöüäöüäöü", 8) == "äöüäö...");
  CHECK(cut("äöü", 2) == "äö");
  CHECK(shown("a\nb\033ä", true) == "a b\\u001bä");
  CHECK(shown("aä", false) == "a?");
  CHECK(at_both_ends("left", "right", 12) == "left   right");
  CHECK(at_both_ends("a long left", "right", 15) == "a lon...  right");
  CHECK(at_both_ends("left", "right", 3) == "rig");
  CHECK(wrapped("one two three four", 9, 5) == std::vector<std::string>{"one two", "three", "four"});
  CHECK(wrapped("one two three four", 9, 2) == std::vector<std::string>{"one two", "three ..."});
  CHECK(wrapped("abcdefghijklm", 5, 5) == std::vector<std::string>{"abcde", "fghij", "klm"});
  CHECK(wrapped("", 5, 5).empty());
}
