#include "train/logging/run_history.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "core/log.h"
#include "core/version.h"
#include "data/json/json.h"
#include "data/json/test_dir.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

WallClock at_noon() {
  return [] { return std::chrono::system_clock::time_point(std::chrono::hours(12)); };
}

std::string same(std::string text) { return text; }

std::vector<Json> lines_of(const TestDir& dir) {
  std::vector<Json> lines;
  std::istringstream in(slurp(dir / "history.jsonl"));
  for (std::string line; std::getline(in, line);) lines.push_back(parse_json(line, "history"));
  return lines;
}

}  // namespace

TEST_CASE("history: start, checkpoint, warnings and the end, in order, over all starts") {
  const TestDir dir;
  {
    RunHistory history(dir.path(), 0, same, at_noon());
    CHECK(names_in(dir.path()).empty());
    history.start({5, 20, 1000, "bf16", 4, "tp 2"});
    log_warning("mind the gap");
    log_info("nothing of interest");
    history.set_steps_done(10);
    history.checkpoint("epoch_0_step_9", 123, 0.5);
    history.end(15, "stopped");
  }
  log_warning("after the run");
  {
    RunHistory history(dir.path(), 0, same, at_noon());
    history.start({10, 20, 1000, "bf16", 1, ""});
    history.end(0, "done", "no better");
  }
  const auto lines = lines_of(dir);
  REQUIRE(lines.size() == 6);
  CHECK(
      dump_json(lines[1], -1) ==
      R"({"step":5,"event":"warning","timestamp":"1970-01-01T12:00:00.000Z","rank":0,"text":"mind the gap"})");
  CHECK(
      dump_json(lines[2], -1) ==
      R"({"step":10,"event":"checkpoint","timestamp":"1970-01-01T12:00:00.000Z","name":"epoch_0_step_9","bytes":123,"seconds":0.5})");
  CHECK(dump_json(lines[3], -1) ==
        R"({"step":10,"event":"end","timestamp":"1970-01-01T12:00:00.000Z","signal":15,"text":"stopped"})");
  CHECK(lines[0].at("event") == "start");
  CHECK(lines[0].at("total_steps") == 20);
  CHECK(lines[0].at("ranks") == 4);
  CHECK(lines[0].at("layout") == "tp 2");
  CHECK(lines[0].at("version") == version());
  CHECK(lines[4].at("step") == 10);
  CHECK_FALSE(lines[4].contains("layout"));
  CHECK(
      dump_json(lines[5], -1) ==
      R"({"step":10,"event":"end","timestamp":"1970-01-01T12:00:00.000Z","signal":0,"text":"done","early_stopping":"no better"})");
}

TEST_CASE("history: the error that ends the process is a line, also after the run was destroyed by it") {
  const TestDir dir;
  try {
    RunHistory history(dir.path(), 3, same, at_noon());
    history.set_steps_done(7);
    fail("out of luck");
  } catch (const Error& e) {
    write_log(LogLevel::error, e.what());
  }
  const auto lines = lines_of(dir);
  set_log_listener({});
  REQUIRE(lines.size() == 1);
  CHECK(dump_json(lines[0], -1) ==
        R"({"step":7,"event":"error","timestamp":"1970-01-01T12:00:00.000Z","rank":3,"text":"out of luck"})");
}

TEST_CASE(
    "history: what is in its way ends a start; a line that cannot be written later does not end the run") {
  const TestDir dir;
  spit(dir / "history.jsonl", "the history of Rome\n");
  RunHistory history(dir.path(), 0, same, at_noon());
  CHECK(message_of([&] { history.start({}); }).find("is in the way and no log") != std::string::npos);
  write_log(LogLevel::error, "the run is refused");  // as the program does with that message
  history.end(0, "refused");
  CHECK(slurp(dir / "history.jsonl") == "the history of Rome\n");
  std::filesystem::remove(dir / "history.jsonl");
  std::filesystem::create_directory(dir / "history.jsonl");
  CHECK(message_of([&] { history.start({}); }).find("cannot open this log") != std::string::npos);
  CHECK_NOTHROW(history.end(0, "done"));
}

TEST_CASE(
    "history: a rank that only warns writes to no file of others, nor does a run whose history is replaced "
    "by one") {
  const TestDir dir;
  spit(dir / "history.jsonl", "the history of Rome\n");
  {
    RunHistory history(dir.path(), 3, same, at_noon());
    log_warning("a warning of rank 3");
  }
  CHECK(slurp(dir / "history.jsonl") == "the history of Rome\n");
  std::filesystem::remove(dir / "history.jsonl");
  RunHistory history(dir.path(), 0, same, at_noon());
  history.start({});
  std::filesystem::rename(dir / "history.jsonl", dir / "moved");
  spit(dir / "history.jsonl", "the history of Rome\n");
  history.checkpoint("step_1", 5, 0.1);
  CHECK(slurp(dir / "history.jsonl") == "the history of Rome\n");
}

TEST_CASE("history: a file that was removed or replaced while the run goes on is written anew") {
  const TestDir dir;
  RunHistory history(dir.path(), 0, same, at_noon());
  history.start({});
  std::filesystem::remove(dir / "history.jsonl");
  history.end(0, "done");
  CHECK(lines_of(dir).size() == 1);
}

TEST_CASE("history: a line that a full disk or a crash has cut off spoils no other") {
  const TestDir dir;
  spit(dir / "history.jsonl", "{\"step\": 4, \"event\": \"sta");
  RunHistory history(dir.path(), 0, same, at_noon());
  history.start({4, 9, 10, "f32", 1, ""});
  history.end(0, "done");
  std::istringstream in(slurp(dir / "history.jsonl"));
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  REQUIRE(lines.size() == 3);
  CHECK(parse_json(lines[1], "history")["event"] == "start");
  CHECK(parse_json(lines[2], "history")["event"] == "end");
}

TEST_CASE("history: texts are as the run wants them in files") {
  const TestDir dir;
  {
    RunHistory history(
        dir.path(), 0, [](const std::string& text) { return "<" + text + ">"; }, at_noon());
    history.start({0, 2, 10, "f32", 1, ""});
    log_warning("hunter2");
    history.end(0, "done");
  }
  const auto lines = lines_of(dir);
  REQUIRE(lines.size() == 3);
  CHECK(lines[1]["text"] == "<hunter2>");
  CHECK(lines[2]["text"] == "<done>");
}
