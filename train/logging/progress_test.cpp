#include "train/logging/progress.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

using namespace nemocube;

namespace {

struct Bench {
  std::vector<std::string> out;
  double time = 100;

  Progress progress(ProgressOptions options) {
    return Progress(
        options, [this](std::string_view text) { out.emplace_back(text); }, [this] { return time; });
  }
};

ProgressStep at(std::int64_t step, std::int64_t total, std::int64_t tokens = 1000) {
  return {.step = step,
          .total = total,
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

TEST_CASE("in a file: a plain line now and then, always for the first and last step") {
  Bench bench;
  Progress progress = bench.progress(
      {.terminal = false, .width = 80, .min_seconds = 0, .every_steps = 4, .every_seconds = 100});
  for (std::int64_t step = 0; step < 10; ++step) {
    bench.time += step == 6 ? 200 : 2;
    progress.step(at(step, 10));
  }
  progress.finish();
  REQUIRE(bench.out.size() == 4);
  CHECK(bench.out[0] == "step 1/10  loss 2.3457  lr 9.5e-05  grad norm 1.23  500 tokens/s  ETA 18s\n");
  CHECK(bench.out[1].starts_with("step 5/10 "));
  CHECK(bench.out[2].starts_with("step 7/10 "));
  CHECK(bench.out[3].starts_with("step 10/10 "));
  CHECK(bench.out[3].ends_with("ETA 0s\n"));
}

TEST_CASE("in a terminal: one line, rewritten a few times a second, never wider than it fits") {
  Bench bench;
  Progress progress = bench.progress(
      {.terminal = true, .width = 40, .min_seconds = 0.1, .every_steps = 1, .every_seconds = 0});
  for (std::int64_t step = 0; step < 100; ++step) {
    bench.time += 0.03;
    progress.step(at(step, 100));
  }
  CHECK(bench.out.size() == 26);  // the first, every fourth (0.12 s) after it, the last
  for (const std::string& text : bench.out) {
    CHECK(text.starts_with("\r"));
    CHECK(text.size() == 40);  // the carriage return and 39 columns
    CHECK(text.find('\n') == std::string::npos);
  }
  bench.out.clear();
  progress.clear();
  CHECK(bench.out == std::vector<std::string>{"\r" + std::string(39, ' ') + "\r"});
  progress.clear();
  progress.finish();
  CHECK(bench.out.size() == 1);
  progress.step(at(3, 100));
  CHECK(bench.out.size() == 2);
  progress.finish();
  CHECK(bench.out.back() == "\n");
}

TEST_CASE("a shorter line covers the longer one before it") {
  Bench bench;
  Progress progress = bench.progress(
      {.terminal = true, .width = 200, .min_seconds = 0, .every_steps = 1, .every_seconds = 0});
  ProgressStep now = at(0, 100);
  now.skipped = true;
  bench.time += 1;
  progress.step(now);
  now = at(1, 100);
  bench.time += 1;
  progress.step(now);
  CHECK(bench.out[0].ends_with("  skipped"));
  CHECK(bench.out[1].size() == bench.out[0].size());
  CHECK(bench.out[1].ends_with("s         "));
}

TEST_CASE("the rate follows the last steps, also in a resumed run") {
  Bench bench;
  Progress progress = bench.progress(
      {.terminal = false, .width = 80, .min_seconds = 0, .every_steps = 1, .every_seconds = 0});
  for (std::int64_t step = 500; step < 600; ++step) {
    bench.time += step < 510 ? 100 : 2;
    progress.step(at(step, 1000));
  }
  CHECK(bench.out[0].find("10 tokens/s  ETA 13h51m") != std::string::npos);       // 499 steps of 100 s
  CHECK(bench.out.back().find("500 tokens/s  ETA 13m20s") != std::string::npos);  // 400 steps of 2 s
}

TEST_CASE("numbers that are not finite, and time that stands still, are shown as they are") {
  Bench bench;
  Progress progress = bench.progress({});
  ProgressStep now = at(0, 2);
  now.loss = std::copysign(std::nan(""), -1);
  now.grad_norm = HUGE_VAL;
  progress.step(now);
  CHECK(bench.out[0] == "step 1/2  loss nan  lr 9.5e-05  grad norm inf\n");
}
