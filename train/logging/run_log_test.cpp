#include "train/logging/run_log.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/error.h"

using namespace nemocube;
namespace fs = std::filesystem;
using std::chrono::milliseconds;
using Time = std::chrono::system_clock::time_point;

namespace {

struct Folder {
  fs::path path;
  Folder() {
    std::string name = (fs::temp_directory_path() / "nemocube_runlog_XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
};

std::vector<nlohmann::json> records(const fs::path& path) {
  std::ifstream in(path);
  std::vector<nlohmann::json> out;
  for (std::string line; std::getline(in, line);) out.push_back(nlohmann::json::parse(line));
  return out;
}

TrainingRecord at_step(std::int64_t step) {
  TrainingRecord record;
  record.step = step;
  record.seconds = 1;
  return record;
}

}  // namespace

TEST_CASE("timestamps are UTC with milliseconds") {
  CHECK(utc_timestamp(Time{}) == "1970-01-01T00:00:00.000Z");
  CHECK(utc_timestamp(Time{milliseconds{1'700'000'000'007}}) == "2023-11-14T22:13:20.007Z");
  CHECK(utc_timestamp(Time{milliseconds{951'782'399'999}}) == "2000-02-28T23:59:59.999Z");
  CHECK(utc_timestamp(Time{milliseconds{-1}}) == "1969-12-31T23:59:59.999Z");
}

TEST_CASE("a training line has the fields of AutoModel's log, then honest rates") {
  TrainingRecord r{.step = 7,
                   .epoch = 1,
                   .loss = 2.5,
                   .grad_norm = 1.25,
                   .lr = 1e-5,
                   .peak_bytes = 3 * (1LL << 29),
                   .seconds = 2,
                   .ranks = 4,
                   .positions = 4096,
                   .content_tokens = 1000,
                   .tokens = 900,
                   .label_tokens = 50,
                   .samples = 8,
                   .mfu = {},
                   .skipped = false,
                   .skipped_steps = 2,
                   .auxiliary_losses = {}};
  CHECK(
      training_line(r, Time{}).text() ==
      R"({"step": 7, "epoch": 1, "timestamp": "1970-01-01T00:00:00.000Z", "loss": 2.5, "grad_norm": 1.25, )"
      R"("lr": 1e-05, "mem": 1.5, "tps": 450, "tps_per_gpu": 112.5, "mfu": null, "num_tokens_per_step": 900, )"
      R"("num_label_tokens": 50, "positions_per_second": 2048, "content_tokens_per_second": 500, )"
      R"("label_tokens_per_second": 25, "samples_per_second": 4, "skipped": false, "skipped_steps": 2})");
  r.auxiliary_losses = {{"seq_aux_loss", 0.5}, {"z_loss", 0.25}};
  CHECK(training_line(r, Time{}).text().ends_with(
      R"("skipped_steps": 2, "seq_aux_loss": 0.5, "z_loss": 0.25})"));
  r.seconds = 0;
  r.loss = std::nan("");
  r.grad_norm.reset();
  r.skipped = true;
  const auto json = nlohmann::json::parse(training_line(r, Time{}).text());
  CHECK(json["tps"].is_null());
  CHECK(json["samples_per_second"].is_null());
  CHECK(json["loss"] == "NaN");
  CHECK(json["grad_norm"].is_null());
  CHECK(json["skipped"] == true);
}

TEST_CASE("a validation line, with metrics when there are some") {
  ValidationRecord r{.step = 9,
                     .epoch = 0,
                     .val_loss = 1.5,
                     .lr = 0.5,
                     .label_tokens = 10,
                     .peak_bytes = 0,
                     .exact_match = {},
                     .f1 = {}};
  CHECK(validation_line(r, Time{}).text() ==
        R"({"step": 9, "epoch": 0, "timestamp": "1970-01-01T00:00:00.000Z", "val_loss": 1.5, "lr": 0.5, )"
        R"("num_label_tokens": 10, "mem": 0})");
  r.exact_match = 12.5;
  r.f1 = 25;
  CHECK(validation_line(r, Time{}).text().ends_with(R"("mem": 0, "exact_match": 12.5, "f1": 25})"));
}

TEST_CASE("a resumed run continues its logs; a new one starts fresh and keeps the old") {
  const Folder folder;
  const fs::path logs = folder.path / "run";
  const auto clock = [] { return Time{}; };
  const std::vector<std::string> sets{"default", "chat"};
  {
    RunLog log(logs, sets, 0, clock);
    for (std::int64_t step = 0; step < 6; ++step) log.training(at_step(step));
    for (const std::int64_t step : {1, 3, 5}) {
      ValidationRecord record;
      record.step = step;
      log.validation("default", record);
      log.validation("chat", record);
    }
  }
  {
    RunLog log(logs, sets, 4, clock);
    log.training(at_step(4));
  }
  const auto steps = [](const fs::path& path) {
    std::vector<std::int64_t> out;
    for (const auto& record : records(path)) out.push_back(record["step"]);
    return out;
  };
  CHECK(steps(logs / "training.jsonl") == std::vector<std::int64_t>{0, 1, 2, 3, 4});
  CHECK(steps(logs / "validation.jsonl") == std::vector<std::int64_t>{1, 3});
  CHECK(steps(logs / "validation_chat.jsonl") == std::vector<std::int64_t>{1, 3});
  RunLog log(logs, sets, 0, clock);
  log.training(at_step(0));
  CHECK(steps(logs / "training.jsonl") == std::vector<std::int64_t>{0});
  CHECK(steps(logs / "training.jsonl.1").size() == 5);
  CHECK(steps(logs / "validation_chat.jsonl.1").size() == 2);
  CHECK_FALSE(fs::exists(logs / "validation.jsonl"));
}

TEST_CASE("a run does not touch files of other kinds beside its logs, and refuses their names") {
  const Folder folder;
  const fs::path logs = folder.path / "run";
  fs::create_directories(logs);
  const std::string rows = "{\"messages\": []}\n";
  const auto write = [&](const char* name) { std::ofstream(logs / name) << rows; };
  const auto read = [&](const char* name) {
    std::ifstream in(logs / name);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  write("validation_chat.jsonl");
  const std::vector<std::string> own{"default"}, chat{"chat"};
  for (const std::int64_t first : {0, 4}) {
    const RunLog log(logs, own, first);
    CHECK(read("validation_chat.jsonl") == rows);
    CHECK_THROWS_WITH_AS(RunLog(logs, chat, first), doctest::Contains("no log of a training run"), Error);
  }
  write("training.jsonl");
  CHECK_THROWS_WITH_AS(RunLog(logs, own, 0), doctest::Contains("training.jsonl"), Error);
  CHECK(read("training.jsonl") == rows);
  CHECK_FALSE(fs::exists(logs / "training.jsonl.1"));
}
