#include "train/logging/progress.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

using namespace nemocube;

namespace {

/// A display that keeps what it is given, with a clock that a test moves.
struct Screen {
  std::vector<std::string> out;
  std::string line;  // of the terminal
  double time = 100;

  ProgressDisplay display(bool terminal, double seconds) {
    ProgressDisplay d;
    d.terminal = terminal;
    d.min_seconds = d.every_seconds = seconds;
    d.show = [this](std::string_view text) { out.emplace_back(line = text); };
    d.shown = [this] { return line; };
    d.keep = [this] { out.emplace_back("kept"); };
    d.clock = [this] { return time; };
    return d;
  }
};

ProgressStep at(std::int64_t step, std::int64_t total, std::int64_t tokens = 1000) {
  return {.step = step,
          .total = total,
          .epoch = step / 4,
          .loss = 2.34567,
          .lr = 9.5e-5,
          .grad_norm = 1.234,
          .tokens = tokens,
          .skipped = false};
}

}  // namespace

TEST_CASE("durations and counts are short") {
  CHECK(short_duration(0) == "0s");
  CHECK(short_duration(59.4) == "59s");
  CHECK(short_duration(59.6) == "1m00s");
  CHECK(short_duration(185) == "3m05s");
  CHECK(short_duration(3725) == "1h02m");
  CHECK(short_duration(4 * 86400 + 7 * 3600) == "4d07h");
  CHECK(short_duration(std::nan("")) == "?");
  CHECK(short_duration(HUGE_VAL) == "?");
  CHECK(short_duration(-1) == "?");
  CHECK(short_count(0) == "0");
  CHECK(short_count(950) == "950");
  CHECK(short_count(999.6) == "1.0k");
  CHECK(short_count(1234) == "1.2k");
  CHECK(short_count(123'456) == "123k");
  CHECK(short_count(3.4e6) == "3.4M");
  CHECK(short_count(5.6e12) == "5600G");
  CHECK(short_count(std::nan("")) == "?");
}

TEST_CASE("steps in a file: every tenth and after some time, always the first and the last") {
  Screen screen;
  {
    StepProgress progress(screen.display(false, 100));
    for (std::int64_t step = 0; step < 40; ++step) {
      screen.time += step == 16 ? 200 : 2;
      progress.step(at(step, 40));
    }
  }
  REQUIRE(screen.out.size() == 6);
  CHECK(screen.out[0] ==
        "step 0 of 40 (2 %)  epoch 0  1m18s left  loss 2.3457  500 tokens/s  lr 9.5e-05  grad norm 1.23");
  CHECK(screen.out[1].starts_with("step 10 of 40 (27 %)  epoch 2 "));
  CHECK(screen.out[2].starts_with("step 16 of 40 "));
  CHECK(screen.out[3].starts_with("step 26 of 40 "));
  CHECK(screen.out[4].starts_with("step 36 of 40 "));
  CHECK(screen.out[5].starts_with("step 39 of 40 (100 %)  epoch 9  0s left "));
}

TEST_CASE("steps in a terminal: one line, rewritten a few times a second, kept at the end") {
  Screen screen;
  {
    StepProgress progress(screen.display(true, 0.1));
    for (std::int64_t step = 0; step < 100; ++step) {
      screen.time += 0.03;
      progress.step(at(step, 100));
    }
    CHECK(screen.out.size() == 26);  // the first, every fourth (0.12 s) after it, the last
  }
  CHECK(screen.out.size() == 27);
  CHECK(screen.out[25].starts_with("step 99 of 100 "));
  CHECK(screen.out[26] == "kept");
}

TEST_CASE("steps: the rate follows the last ones, also in a resumed run") {
  Screen screen;
  StepProgress progress(screen.display(false, 0));
  for (std::int64_t step = 500; step < 600; ++step) {
    screen.time += step < 510 ? 100 : 2;
    progress.step(at(step, 1000));
  }
  CHECK(screen.out[0].find("13h51m left") != std::string::npos);  // 499 steps of 100 s
  CHECK(screen.out[0].find(" 10 tokens/s") != std::string::npos);
  CHECK(screen.out.back().find("13m20s left") != std::string::npos);  // 400 steps of 2 s
  CHECK(screen.out.back().find(" 500 tokens/s") != std::string::npos);
}

TEST_CASE("steps: numbers that are not finite, and time that stands still, are shown as they are") {
  Screen screen;
  StepProgress progress(screen.display(false, 30));
  ProgressStep now = at(0, 2);
  now.loss = std::copysign(std::nan(""), -1);
  now.grad_norm = HUGE_VAL;
  now.skipped = true;
  progress.step(now);
  CHECK(screen.out[0] == "step 0 of 2 (50 %)  epoch 0  skipped  loss nan  lr 9.5e-05  grad norm inf");
}

TEST_CASE("steps: the loss of each depth of multi-token prediction") {
  Screen screen;
  StepProgress progress(screen.display(false, 30));
  ProgressStep now = at(0, 2);
  now.mtp_losses = {3.25, 4.5};
  progress.step(now);
  CHECK(screen.out[0].find("  mtp 3.2500 4.5000  ") != std::string::npos);
}

TEST_CASE("steps: how uneven experts are used, where that is known") {
  Screen screen;
  StepProgress progress(screen.display(false, 30));
  ProgressStep now = at(0, 2);
  now.imbalance = 1.828;
  progress.step(now);
  CHECK(screen.out[0].ends_with("  grad norm 1.23  busiest expert 1.83 x mean"));
}

TEST_CASE("tasks in a terminal: the line that was there before comes back") {
  Screen screen;
  screen.line = "step 3 of 9";
  {
    TaskProgress progress("validation", "rows", screen.display(true, 0.1));
    for (std::int64_t row = 0; row <= 80; ++row) {
      progress(row, 80);
      screen.time += 0.06;
    }
    REQUIRE(screen.out.size() == 40);
    CHECK(screen.out[0] == "validation: 2 of 80 rows (2 %)  [----------]  5s left  17 rows/s");
    CHECK(screen.out[39] == "validation: 80 of 80 rows (100 %)  [##########]  17 rows/s");
  }
  CHECK(screen.out.size() == 41);
  CHECK(screen.line == "step 3 of 9");
}

TEST_CASE("tasks in a file: a line now and then, none for short ones") {
  Screen screen;
  {
    TaskProgress progress("eval", "questions", screen.display(false, 30));
    for (std::int64_t done = 0; done < 100; ++done) {
      progress(done, 100);
      screen.time += 1;
    }
  }
  CHECK(screen.out == std::vector<std::string>{"eval: 30 of 100 questions (30 %)  1m10s left  1 questions/s",
                                               "eval: 60 of 100 questions (60 %)  40s left  1 questions/s",
                                               "eval: 90 of 100 questions (90 %)  10s left  1 questions/s"});
  screen.out.clear();
  { TaskProgress("eval", "questions", screen.display(false, 30))(1, 2); }
  CHECK(screen.out.empty());
}

TEST_CASE("tasks of bytes, and what was transferred, have units of bytes") {
  Screen screen;
  {
    TaskProgress progress("weights", "bytes", screen.display(true, 1));
    progress(0, 8'000'000'000);
    screen.time += 5;
    progress(1'200'000'000, 8'000'000'000);
  }
  CHECK(screen.out[0] == "weights: 1.20 GB of 8.00 GB (15 %)  [#---------]  28s left  240 MB/s");
  CHECK(transfer_text(31'200'000, 0.4) == "31.2 MB in 0.4 s, 78.0 MB/s");
  CHECK(transfer_text(8'000'000'000, 40) == "8.00 GB in 40 s, 200 MB/s");
  CHECK(transfer_text(5, 0) == "5 B in 0.0 s");
  CHECK(progress_bar(1, 4, 10) == "[##------]");
  CHECK(progress_bar(5, 4, 6) == "[####]");
  CHECK(progress_bar(0, 0, 0) == "[-]");
}
