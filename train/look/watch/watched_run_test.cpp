#include "train/look/watch/watched_run.h"

#include <doctest/doctest.h>

#include <chrono>

#include <cmath>

using namespace nemocube;

TEST_CASE("watched run: a line of a step, and numbers that are none") {
  WatchedRun run(10);
  run.training_line(
      R"({"step": 3, "epoch": 1, "timestamp": "1970-01-01T00:01:00.500Z", "loss": 2.5, "grad_norm": "NaN", "lr": 1e-4,
          "mem": 1.5, "tps": 200, "tps_per_gpu": 50, "mfu": null, "num_tokens_per_step": 100, "skipped_steps": 2,
          "version": "1.2.3", "layout": "4 ranks"})");
  REQUIRE(run.steps.size() == 1);
  const WatchedStep& s = run.steps[0];
  CHECK(s.step == 3);
  CHECK(s.epoch == 1);
  CHECK(s.time == 60.5);
  CHECK(s.loss == 2.5);
  CHECK(std::isnan(*s.grad_norm));
  CHECK(s.mem == 1.5);
  CHECK(s.seconds() == 0.5);
  CHECK_FALSE(s.mfu.has_value());
  CHECK(s.skipped_steps == 2);
  CHECK(run.version == "1.2.3");
  CHECK(run.layout == "4 ranks");
}

TEST_CASE("watched run: damaged and strange lines change nothing") {
  WatchedRun run(10);
  for (const char* line : {"", "{", "[1]", "{\"step\": 4, \"lo", "{\"loss\": 1}", "{\"step\": -1}",
                           "{\"step\": \"4\"}", "\xff"}) {
    run.training_line(line);
    run.validation_line("default", line);
    run.history_line(line);
  }
  CHECK(run.steps.empty());
  CHECK(run.validations.empty());
  CHECK_FALSE(run.start.has_value());
  run.training_line("{\"step\": 4}");  // of some other version
  REQUIRE(run.steps.size() == 1);
  CHECK_FALSE(run.steps[0].loss.has_value());
  CHECK_FALSE(run.steps[0].seconds().has_value());
}

TEST_CASE("watched run: damage of megabytes is left out soon") {
  WatchedRun run(5);
  const auto begin = std::chrono::steady_clock::now();
  const std::string brackets(std::size_t{60} << 20, '[');
  run.training_line(brackets);
  run.history_line(R"({"step": 1, "event": )" + brackets);
  run.validation_line("default", R"({"step": 1, "x": {"y": )" + brackets);
  CHECK(run.steps.empty());
  std::string zeros = R"({"step": 7, "loss": 2.5, "expert_tokens": [[0)";
  for (int i = 0; i < 1'000'000; ++i) zeros += ", 0";
  run.training_line(zeros + "]]}");
  REQUIRE(run.steps.size() == 1);
  CHECK(run.steps[0].loss == 2.5);
  CHECK(std::chrono::steady_clock::now() - begin <
        std::chrono::seconds(20));  // far less; nested values took a minute
}

TEST_CASE("watched run: numbers that no run has are no numbers") {
  WatchedRun run(10);
  run.training_line(R"({"step": 9223372036854775807, "loss": 1})");
  CHECK(run.steps.empty());
  run.training_line(R"({"step": 1, "loss": 1, "tps": 1e300, "num_tokens_per_step": 1e300, "mem": -1e300})");
  REQUIRE(run.steps.size() == 1);
  CHECK_FALSE(run.steps[0].tokens_per_second.has_value());
  CHECK_FALSE(run.steps[0].tokens.has_value());
  CHECK_FALSE(run.steps[0].mem.has_value());
}

TEST_CASE("watched run: the last steps are kept; a step that comes again replaces those from it on") {
  WatchedRun run(5);
  const auto add = [&](int step, double loss) {
    run.training_line("{\"step\": " + std::to_string(step) + ", \"loss\": " + std::to_string(loss) + "}");
  };
  for (int step = 0; step < 8; ++step) add(step, step);
  REQUIRE(run.steps.size() == 5);
  CHECK(run.steps.front().step == 3);
  add(5, 50);
  REQUIRE(run.steps.size() == 3);
  CHECK(run.steps.back().loss == 50);
}

TEST_CASE("watched run: validations by set, with the one before and the lowest") {
  WatchedRun run(5);
  for (const char* loss : {"3", "2", "\"NaN\"", "2.5"})
    run.validation_line("train", std::string("{\"step\": 7, \"val_loss\": ") + loss + "}");
  const WatchedValidation& v = run.validations.at("train");
  CHECK(v.last->loss == 2.5);
  CHECK(std::isnan(v.before->loss));
  CHECK(v.lowest->loss == 2);
  run.forget_validation("train");
  CHECK(run.validations.empty());
}

TEST_CASE("watched run: how a run ended, until it starts again") {
  WatchedRun run(5);
  run.history_line(R"({"step": 0, "event": "start", "total_steps": 9, "ranks": 2})");
  CHECK(run.start->total_steps == 9);
  CHECK_FALSE(run.end.has_value());
  run.history_line(R"({"step": 2, "event": "warning", "rank": 1, "text": "careful"})");
  run.history_line(R"({"step": 3, "event": "end", "signal": 15, "text": "stopped"})");
  CHECK(run.end == "stopped");
  CHECK(run.signal == 15);
  CHECK_FALSE(run.failed);
  run.history_line(R"({"step": 3, "event": "start", "total_steps": 9})");
  CHECK_FALSE(run.end.has_value());
  CHECK(run.messages.empty());
  run.history_line(R"({"step": 4, "event": "error", "rank": 1, "text": "no memory"})");
  CHECK(run.end == "no memory");
  CHECK(run.failed);
  CHECK(run.signal == 0);
  for (int i = 0; i < 100; ++i) run.history_line(R"({"step": 4, "event": "warning", "text": "again"})");
  CHECK(run.messages.size() == WatchedRun::most_messages);
}
