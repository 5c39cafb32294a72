#include "train/logging/run_log.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "core/error.h"
#include "core/version.h"
#include "tests/support/paths.h"

using namespace nemocube;
using nemocube::testing::source_dir;
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
  r.experts = {.tokens = {{3, 1}, {0, 4}}, .imbalance = {1.5, 2}};
  CHECK(training_line(r, Time{}).text().ends_with(
      R"("z_loss": 0.25, "expert_tokens": [[3, 1], [0, 4]], "expert_imbalance": [1.5, 2]})"));
  r.times = StepTimes{.data = 0.25};
  CHECK(training_line(r, Time{}).text().ends_with(R"("expert_imbalance": [1.5, 2], "data_seconds": 0.25})"));
  r.times->communication = 0.75;
  r.times->waiting = 0.5;
  CHECK(training_line(r, Time{}).text().ends_with(
      R"("data_seconds": 0.25, "communication_seconds": 0.75, "communication_waiting_seconds": 0.5})"));
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
    RunLog log(logs, sets, {}, clock);
    for (std::int64_t step = 0; step < 6; ++step) log.training(at_step(step));
    for (const std::int64_t step : {1, 3, 5}) {
      ValidationRecord record;
      record.step = step;
      log.validation("default", record);
      log.validation("chat", record);
    }
  }
  {
    RunLog log(logs, sets, {.first_step = 4}, clock);
    CHECK(records(logs / "training.jsonl").size() == 6);  // nothing is touched before the first line
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
  RunLog log(logs, sets, {}, clock);
  log.training(at_step(0));
  CHECK(steps(logs / "training.jsonl") == std::vector<std::int64_t>{0});
  CHECK(steps(logs / "training.jsonl.1").size() == 5);
  CHECK(steps(logs / "validation_chat.jsonl.1").size() == 2);
  CHECK_FALSE(fs::exists(logs / "validation.jsonl"));
}

namespace {

std::vector<std::int64_t> steps_of(const fs::path& path) {
  std::vector<std::int64_t> out;
  for (const auto& record : records(path)) out.push_back(record["step"]);
  return out;
}

std::vector<std::string> names_of(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

using Steps = std::vector<std::int64_t>;
using Names = std::vector<std::string>;

// A log of six steps, three of them validated.
void write_first_run(const fs::path& folder, std::span<const std::string> sets) {
  RunLog log(folder, sets, {});
  for (std::int64_t step = 0; step < 6; ++step) log.training(at_step(step));
  for (const std::int64_t step : {1, 3, 5}) {
    ValidationRecord record;
    record.step = step;
    log.validation("default", record);
  }
}

}  // namespace

TEST_CASE("a run that leaves a branch touches its logs only when it has saved, and keeps them") {
  const Folder folder;
  const std::vector<std::string> sets{"default"};
  write_first_run(folder.path, sets);
  const auto at = [&](const char* name) { return folder.path / name; };
  {
    // This run goes back to step 2 and ends before it saves a checkpoint. The old log is unchanged, and the
    // next run continues it.
    RunLog log(folder.path, sets, {.first_step = 2, .serial = 4, .leaves_branch = true});
    log.training(at_step(2));
    CHECK(steps_of(at("training.jsonl")) == Steps{0, 1, 2, 3, 4, 5});
    CHECK(steps_of(at("training.jsonl.branch_4")) == Steps{0, 1, 2});
  }
  {
    RunLog log(folder.path, sets, {.first_step = 6, .serial = 4});
    CHECK(fs::exists(at("training.jsonl.branch_4")));
    log.training(at_step(6));
    CHECK(names_of(folder.path) == Names{"training.jsonl", "validation.jsonl"});
    CHECK(steps_of(at("training.jsonl")) == Steps{0, 1, 2, 3, 4, 5, 6});
  }
  RunLog log(folder.path, sets, {.first_step = 2, .serial = 4, .leaves_branch = true});
  log.training(at_step(2));
  log.keep_branch();
  log.training(at_step(3));
  ValidationRecord record;
  record.step = 3;
  log.validation("default", record);
  log.keep_branch();  // further checkpoints change nothing
  CHECK(names_of(folder.path) == Names{"abandoned", "training.jsonl", "validation.jsonl"});
  CHECK(steps_of(at("training.jsonl")) == Steps{0, 1, 2, 3});
  CHECK(steps_of(at("validation.jsonl")) == Steps{1, 3});
  CHECK(steps_of(at("abandoned") / "training.jsonl") == Steps{0, 1, 2, 3, 4, 5, 6});
  CHECK(steps_of(at("abandoned") / "validation.jsonl") == Steps{1, 3, 5});
  // The logs that a second branch leaves behind get a folder of their own.
  RunLog second(folder.path, sets, {.first_step = 1, .serial = 5, .leaves_branch = true});
  second.training(at_step(1));
  second.keep_branch();
  CHECK(steps_of(at("abandoned") / "training.jsonl.1") == Steps{0, 1, 2, 3});
  CHECK(steps_of(at("training.jsonl")) == Steps{0, 1});
}

TEST_CASE("the log of a branch that never saved is kept once, unless another log says the same") {
  const Folder folder;
  const std::vector<std::string> sets{"default"};
  write_first_run(folder.path, sets);
  for (int start = 0; start < 3; ++start) {
    RunLog log(folder.path, sets, {.first_step = 2, .serial = 4, .leaves_branch = true});
    TrainingRecord other = at_step(2);
    other.loss = 7;
    log.training(other);
  }
  RunLog log(folder.path, sets, {.first_step = 6, .serial = 4});
  log.training(at_step(6));
  CHECK(names_of(folder.path) == Names{"abandoned", "training.jsonl", "validation.jsonl"});
  CHECK(names_of(folder.path / "abandoned") == Names{"training.jsonl"});
  CHECK(steps_of(folder.path / "abandoned" / "training.jsonl") == Steps{0, 1, 2});
  CHECK(steps_of(folder.path / "training.jsonl") == Steps{0, 1, 2, 3, 4, 5, 6});
}

TEST_CASE("a kill between the checkpoint of a branch and its logs is made good by the next run") {
  for (const bool half : {false, true}) {
    CAPTURE(half);
    const Folder folder;
    const std::vector<std::string> sets{"default"};
    write_first_run(folder.path, sets);
    {
      RunLog log(folder.path, sets, {.first_step = 2, .serial = 4, .leaves_branch = true});
      log.training(at_step(2));
    }
    if (half) {  // as a kill between the two renames of a log leaves it
      fs::create_directory(folder.path / "abandoned");
      fs::rename(folder.path / "training.jsonl", folder.path / "abandoned" / "training.jsonl");
    }
    RunLog log(folder.path, sets, {.first_step = 3, .serial = 5});
    log.training(at_step(3));
    CHECK(names_of(folder.path) == Names{"abandoned", "training.jsonl", "validation.jsonl"});
    CHECK(steps_of(folder.path / "training.jsonl") == Steps{0, 1, 2, 3});
    CHECK(names_of(folder.path / "abandoned") == Names{"training.jsonl", "validation.jsonl"});
    CHECK(steps_of(folder.path / "abandoned" / "training.jsonl") == Steps{0, 1, 2, 3, 4, 5});
  }
}

TEST_CASE("the first line of each start names the program's version") {
  const Folder folder;
  for (const std::int64_t first : {0, 2}) {
    RunLog log(folder.path, {}, {.first_step = first});
    log.training(at_step(first));
    log.training(at_step(first + 1));
  }
  const auto all = records(folder.path / "training.jsonl");
  REQUIRE(all.size() == 4);
  for (std::size_t i = 0; i < all.size(); ++i) CHECK(all[i].contains("version") == (i % 2 == 0));
  CHECK(all[0]["version"] == std::string(version()));
}

TEST_CASE("logs that earlier starts left go when the log repeats them, and no others") {
  const Folder folder;
  const auto write = [&](const char* name, std::initializer_list<double> losses, const char* time) {
    std::ofstream out(folder.path / name);
    int step = 0;
    for (const double loss : losses)
      out << "{\"step\": " << step++ << ", \"timestamp\": \"" << time << "\", \"loss\": " << loss << "}\n";
  };
  write("training.jsonl", {3, 2, 1}, "now");
  write("training.jsonl.1", {3, 2},
        "before");  // a crash in the third step; the next start wrote the same again
  write("training.jsonl.2", {}, "before");
  write("training.jsonl.3", {3, 2.5}, "before");  // another loss: from another recipe
  write("training.jsonl.4", {3, 2, 1, 0.5}, "before");
  write("training.jsonl.5x", {3}, "before");
  std::ofstream(folder.path / "training.jsonl.6") << "notes of mine\n";
  write("validation_chat.jsonl.1", {3}, "before");  // there is no newer log of this set
  RunLog log(folder.path, {}, {.first_step = 3});
  CHECK(names_of(folder.path).size() == 8);
  log.training(at_step(3));
  CHECK(names_of(folder.path) == Names{"training.jsonl", "training.jsonl.3", "training.jsonl.4",
                                       "training.jsonl.5x", "training.jsonl.6", "validation_chat.jsonl.1"});
}

TEST_CASE("docs/logs.md: one row for each field, with its unit") {
  std::map<std::string, std::set<std::string>> documented;  // by heading
  std::ifstream in(source_dir() / "docs" / "logs.md");
  REQUIRE(in.good());
  std::string heading;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("## ")) heading = line.substr(3);
    if (!line.starts_with("| `")) continue;
    const std::size_t end = line.find('`', 3), unit = line.find('|', end) + 1;
    CHECK_MESSAGE(documented[heading].insert(line.substr(3, end - 3)).second, line);
    CHECK_MESSAGE(line.substr(unit, line.find('|', unit) - unit).find_first_not_of(' ') != line.npos, line);
  }
  const auto fields = [](const nlohmann::json& record) {
    std::set<std::string> names;
    for (const auto& item : record.items()) names.insert(item.key());
    return names;
  };
  TrainingRecord training = at_step(0);
  for (const char* name : {"aux_loss", "seq_aux_loss", "global_aux_loss", "z_loss"})
    training.auxiliary_losses.emplace_back(name, 1);
  training.mtp_losses = {1};
  training.experts = {.tokens = {{1, 1}}, .imbalance = {1}};
  training.times = StepTimes{.data = 1, .communication = 1, .waiting = 1};
  const Folder folder;
  RunLog log(folder.path, {}, {.layout = "2 ranks"});
  log.training(training);
  CHECK(documented["training.jsonl"] == fields(records(folder.path / "training.jsonl").at(0)));
  ValidationRecord validation;
  validation.exact_match = validation.f1 = 1;
  CHECK(documented["validation.jsonl"] ==
        fields(nlohmann::json::parse(validation_line(validation, Time{}).text())));
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
    RunLog log(logs, own, {.first_step = first});
    log.training(at_step(first));
    fs::remove(logs / "training.jsonl");
    CHECK(read("validation_chat.jsonl") == rows);
    CHECK_THROWS_WITH_AS(RunLog(logs, chat, {.first_step = first}),
                         doctest::Contains("no log of a training run"), Error);
  }
  for (const auto& entry : fs::directory_iterator(logs))
    if (entry.path().filename().string().starts_with("training")) fs::remove(entry.path());
  write("training.jsonl");
  CHECK_THROWS_WITH_AS(RunLog(logs, own, {}), doctest::Contains("training.jsonl"), Error);
  CHECK(read("training.jsonl") == rows);
  CHECK_FALSE(fs::exists(logs / "training.jsonl.1"));
}
