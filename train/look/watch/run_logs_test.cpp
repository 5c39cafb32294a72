#include "train/look/watch/run_logs.h"

#include <doctest/doctest.h>

#include <chrono>

#include "core/error.h"
#include "data/json/test_dir.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;

std::string steps_from(int first, int end, double loss = 1) {
  std::string text;
  for (int step = first; step < end; ++step) text += cat("{\"step\": ", step, ", \"loss\": ", loss, "}\n");
  return text;
}

void poll_all(RunLogs& logs) {
  while (logs.poll()) {
  }
}

void append(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::app | std::ios::binary) << text;
}

}  // namespace

TEST_CASE(
    "logs of a run: waits for the directory, then for the logs; a torn last line is read when it is whole") {
  const TestDir dir;
  const fs::path folder = dir / "run";
  RunLogs logs(folder, 100);
  CHECK_FALSE(logs.poll());
  fs::create_directory(folder);
  CHECK_FALSE(logs.poll());
  spit(folder / "training.jsonl", steps_from(0, 3) + "{\"step\": 3, \"lo");
  poll_all(logs);
  CHECK(logs.run().steps.size() == 3);
  append(folder / "training.jsonl", "ss\": 0.5}\n");
  poll_all(logs);
  REQUIRE(logs.run().steps.size() == 4);
  CHECK(logs.run().steps.back().loss == 0.5);
  CHECK(logs.lines_read() == 4);
}

TEST_CASE("logs of a run: a resumed run replaces its log, a new one renames it") {
  const TestDir dir;
  RunLogs logs(dir.path(), 100);
  spit(dir / "training.jsonl", steps_from(0, 9));
  poll_all(logs);
  CHECK(logs.run().steps.size() == 9);
  spit(dir / "new", steps_from(0, 5));
  fs::rename(dir / "new", dir / "training.jsonl");
  append(dir / "training.jsonl", steps_from(5, 6, 7));
  poll_all(logs);
  REQUIRE(logs.run().steps.size() == 6);
  CHECK(logs.run().steps.back().loss == 7);
  fs::rename(dir / "training.jsonl", dir / "training.jsonl.1");
  poll_all(logs);
  CHECK(logs.run().steps.empty());
}

TEST_CASE("logs of a run: the log of a branch while it is the newest, then the one that takes its place") {
  const TestDir dir;
  RunLogs logs(dir.path(), 100);
  spit(dir / "training.jsonl", steps_from(0, 9));
  spit(dir / "validation.jsonl", "{\"step\": 8, \"val_loss\": 1}\n");
  spit(dir / "training.jsonl.branch_2", steps_from(0, 3, 5));
  spit(dir / "validation.jsonl.branch_2", "{\"step\": 2, \"val_loss\": 4}\n");
  const auto now = fs::file_time_type::clock::now();
  fs::last_write_time(dir / "training.jsonl", now - std::chrono::hours(1));
  poll_all(logs);
  CHECK(logs.run().branch == "training.jsonl.branch_2");
  CHECK(logs.run().steps.size() == 3);
  CHECK(logs.run().validations.at("default").last->loss == 4);
  fs::rename(dir / "training.jsonl.branch_2", dir / "training.jsonl");
  fs::rename(dir / "validation.jsonl.branch_2", dir / "validation.jsonl");
  poll_all(logs);
  CHECK(logs.run().branch.empty());
  CHECK(logs.run().steps.size() == 3);
  CHECK(logs.run().validations.at("default").last->loss == 4);
  // What a killed branch has left behind is older.
  spit(dir / "training.jsonl.branch_3", steps_from(0, 1));
  fs::last_write_time(dir / "training.jsonl.branch_3", now - std::chrono::hours(1));
  poll_all(logs);
  CHECK(logs.run().branch.empty());
}

TEST_CASE("logs of a run: validation sets by name, and the checkpoint that LATEST names") {
  const TestDir dir;
  RunLogs logs(dir.path(), 100);
  for (const char* name :
       {"validation.jsonl", "validation_unseen.jsonl", "validation.jsonl.1", "validations.jsonl"})
    spit(dir / name, "{\"step\": 8, \"val_loss\": 1}\n");
  fs::create_directory_symlink("epoch_0_step_8", dir / "LATEST");
  poll_all(logs);
  REQUIRE(logs.run().validations.size() == 2);
  CHECK(logs.run().validations.contains("default"));
  CHECK(logs.run().validations.contains("unseen"));
  CHECK(logs.run().checkpoint->name == "epoch_0_step_8");
  spit(dir / "history.jsonl",
       "{\"step\": 9, \"event\": \"checkpoint\", \"name\": \"epoch_0_step_8\", \"bytes\": 5}\n");
  poll_all(logs);
  CHECK(logs.run().checkpoint->bytes == 5);
}

TEST_CASE("logs of a run: of a million lines the last ones are read, in bounded memory") {
  const TestDir dir;
  spit(dir / "training.jsonl", steps_from(0, 1'000'000));
  RunLogs logs(dir.path(), 50, 1 << 20);
  poll_all(logs);
  CHECK(logs.run().steps.size() == 50);
  CHECK(logs.run().steps.back().step == 999'999);
  CHECK(logs.lines_read() < 60'000);
}

TEST_CASE("logs of a run: a file is no directory of a run") {
  const TestDir dir;
  spit(dir / "file", "");
  RunLogs logs(dir / "file", 10);
  const std::string message = message_of([&] { logs.poll(); });
  CHECK(message.find((dir / "file").string()) != std::string::npos);
  CHECK(message.find("want the directory of a run") != std::string::npos);
}
