#include "train/look/report/page.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/json/test_dir.h"
#include "tests/support/occurrences.h"
#include "tests/support/page.h"
#include "train/look/report/html.h"
#include "train/look/report/read_run.h"
#include "train/look/report/recipe_table.h"
#include "train/run/run_lock.h"

using namespace nemocube;
using namespace nemocube::run_report;
using namespace nemocube::testing;
namespace fs = std::filesystem;

namespace {

std::string training_line(int step, const std::string& more = "") {
  return cat(R"({"step": )", step, R"(, "epoch": 0, "timestamp": "2026-01-02T03:04:05.006Z", "loss": )",
             exact(8.0 / (step + 1)),
             R"(, "grad_norm": 0.5, "lr": 0.001, "mem": 0.25, "tps": 200, "mfu": null, )",
             R"("num_tokens_per_step": 100, "skipped": false, "skipped_steps": 0)", more, "}\n");
}

/// A run's directory with `steps` lines.
void write_run(const fs::path& folder, int steps, const std::string& more = "") {
  fs::create_directories(folder);
  std::string log;
  for (int i = 0; i < steps; ++i) log += training_line(i, more);
  spit(folder / "training.jsonl", log);
}

void write_checkpoint(const fs::path& run, int step, const std::string& recipe) {
  const fs::path checkpoint = run / cat("epoch_0_step_", step);
  fs::create_directories(checkpoint);
  spit(checkpoint / "config.yaml", recipe);
  RunState state;
  state.step = state.scheduler_steps = state.optimizer_steps = step + 1;
  state.samples = 100;
  state.loader.rows = state.loader.next_index = 12;
  write_run_state(checkpoint / "state.json", state, Origin{"0.1.0", 1, "", 0});
}

std::string page_of(const std::vector<fs::path>& folders) {
  std::vector<RunData> runs;
  for (const fs::path& folder : folders) runs.push_back(read_run(folder));
  return page_html(runs, "2026-01-02T03:04:05.006Z");
}

bool has(const std::string& page, const std::string& text) { return page.find(text) != page.npos; }

const std::string hostile = "</title><script>alert(1)</script>\"'&<!--\x01\xff ]]> \xE2\x80\xAE";

}  // namespace

TEST_CASE("report: numbers of the curves are those of the logs, and the page is well-formed") {
  const TestDir dir;
  write_run(dir / "a", 12, R"(, "data_seconds": 0.125)");
  spit(dir / "a" / "validation.jsonl",
       R"({"step": 5, "epoch": 0, "timestamp": "t", "val_loss": 2.5, "exact_match": 50, "f1": 62.5})"
       "\n");
  spit(dir / "a" / "validation_train.jsonl", R"({"step": 5, "val_loss": 1.25})"
                                             "\n");
  const std::string page = page_of({dir / "a"});
  CHECK(fault_of_page(page) == "");
  const auto loss = points_of(page, "loss", "training");
  REQUIRE(loss.size() == 12);
  for (int i = 0; i < 12; ++i) CHECK(loss.at(i) == 8.0 / (i + 1));
  CHECK(points_of(page, "loss", "validation") == std::map<double, double>{{5, 2.5}});
  CHECK(points_of(page, "loss", "validation, train") == std::map<double, double>{{5, 1.25}});
  CHECK(points_of(page, "answers", "exact match, validation") == std::map<double, double>{{5, 50}});
  CHECK(points_of(page, "tps", "training").at(3) == 200);
  CHECK(points_of(page, "mem", "training").at(3) == 0.25);
  // Half a second a step, of which an eighth went to data.
  CHECK(has(page, R"(data-value="0.375" data-first="3" data-last="3")"));
  CHECK(has(page, R"(data-value="0.125" data-first="3" data-last="3")"));
}

TEST_CASE("report: the loss of each depth of multi-token prediction that a log has, and of no other field") {
  const TestDir dir;
  write_run(dir / "a", 3, R"(, "mtp_loss_1": 4, "mtp_loss_2": 5, "mtp_loss_10": 6, "mtp_loss_x": 7)");
  write_run(dir / "b", 3, R"(, "mtp_loss_3": 8, "mtp_loss_0": 7, "mtp_loss_03": 7, "mtp_loss_1025": 7)");
  const std::string page = page_of({dir / "a"});
  CHECK(fault_of_page(page) == "");
  for (const auto& [field, value] :
       {std::pair{"mtp_loss_1", 4.0}, std::pair{"mtp_loss_2", 5.0}, std::pair{"mtp_loss_10", 6.0}})
    CHECK(points_of(page, field, "training") == std::map<double, double>{{0, value}, {1, value}, {2, value}});
  CHECK(page.find("depth 2") < page.find("depth 10"));
  const std::string both = page_of({dir / "a", dir / "b"});
  CHECK(fault_of_page(both) == "");
  CHECK(points_of(both, "mtp_loss_3", "b").at(1) == 8);
  for (const char* other : {"mtp_loss_x", "mtp_loss_0\"", "mtp_loss_03", "mtp_loss_1025"})
    CHECK_FALSE_MESSAGE(has(both, other), other);
}

TEST_CASE("report: what a run has no data for is left out with one line that says why") {
  const TestDir dir;
  write_run(dir / "a", 2);
  const std::string page = page_of({dir / "a"});
  CHECK(fault_of_page(page) == "");
  for (const char* why :
       {"Validation loss:</strong> there is no validation log yet", "evaluation.squad_metrics: true makes",
        "mfu.peak_tflops, the peak", "older program, which did not write data_seconds",
        "communication and waiting are not logged on one rank", "moe_metrics.enabled: true turns it on",
        "train --profile steps=A-B writes one", "the run has no checkpoint, whose config.yaml",
        "Predictions:</strong> the recipe"})
    CHECK_MESSAGE(has(page, why), why);
}

TEST_CASE("report: text of files is shown, never obeyed") {
  const TestDir dir;
  const fs::path run = dir / "a&<b>\"";
  const std::string text = nlohmann::json(hostile.substr(0, 38)).dump();
  write_run(run, 3, cat(R"(, "version": )", text, R"(, "layout": )", text));
  spit(run / "validation_<i>&.jsonl", R"({"step": 1, "val_loss": 2})"
                                      "\n");
  write_checkpoint(run, 2, "'" + std::string("</pre><script>x</script>") + "': \"</pre>&\"\n");
  fs::create_directories(run / "profile");
  spit(
      run / "profile" / "steps_<u>.json",
      R"({"traceEvents": [{"ph": "X", "name": "forward</title><script>", "cat": "pipeline", "pid": 0, "ts": 0, "dur": 5}]})");
  const std::string page = page_of({run});
  CHECK(fault_of_page(page) == "");
  for (const char* tag : {"<script", "<i>", "<u>", "<b>", "</pre>&", "<!--"})
    CHECK_FALSE_MESSAGE(has(page, tag), tag);
  CHECK(has(page, "&lt;script&gt;"));
  CHECK(fault_of_page(cat("<!DOCTYPE html>\n<html><p a=\"", escaped(hostile), "\">", escaped(hostile),
                          "</p></html>\n")) == "");
}

TEST_CASE("report: damaged lines, a torn last one and numbers that are not finite are left out") {
  const TestDir dir;
  write_run(dir / "a", 3);
  spit(dir / "a" / "training.jsonl", slurp(dir / "a" / "training.jsonl") + "no json\n" +
                                         R"({"step": 3, "loss": "NaN", "grad_norm": null})" + "\n" +
                                         R"({"step": 4, "loss": 1.0, "gra)");
  const RunData run = read_run(dir / "a");
  CHECK(run.training.lines == 4);
  CHECK(run.training.damaged == 2);
  CHECK(run.training.not_finite == std::vector<double>{3});
  const std::string page = page_of({dir / "a"});
  CHECK(fault_of_page(page) == "");
  CHECK(points_of(page, "loss", "training").size() == 3);
  CHECK(has(page, "the loss of 1 step is not finite and not drawn (3)"));
  CHECK(has(page, "2 damaged lines left out"));
}

TEST_CASE("report: what is no directory of a run is refused by name") {
  const TestDir dir;
  spit(dir / "file", "");
  fs::create_directories(dir / "empty");
  fs::create_directories(dir / "other");
  spit(dir / "other" / "training.jsonl", "hello\n");
  fs::create_directories(dir / "begun");
  spit(dir / "begun" / "training.jsonl", R"({"step": 0, "lo)");
  CHECK_THROWS_WITH_AS(read_run(dir / "absent"), doctest::Contains("absent': there is no such directory"),
                       Error);
  CHECK_THROWS_WITH_AS(read_run(dir / "file"),
                       doctest::Contains("file': want the directory of a run, got a file"), Error);
  CHECK_THROWS_WITH_AS(read_run(dir / "empty"), doctest::Contains("it has none"), Error);
  CHECK_THROWS_WITH_AS(read_run(dir / "other"), doctest::Contains("is no log of a run"), Error);
  CHECK_THROWS_WITH_AS(read_run(dir / "begun"), doctest::Contains("has no whole line yet"), Error);
}

TEST_CASE("report: several runs share charts, and the table has the keys that differ") {
  const TestDir dir;
  write_run(dir / "x" / "same", 3);
  write_run(dir / "y" / "same", 5);
  for (const char* set : {"", "_train"})
    spit(dir / "x" / "same" / cat("validation", set, ".jsonl"), R"({"step": 0, "val_loss": 2, "f1": 3})"
                                                                "\n"
                                                                R"({"step": 2, "val_loss": 1})"
                                                                "\n");
  const std::string common = "seed: 1\noptimizer: {betas: [0.9, 0.98], lr: ";
  write_checkpoint(dir / "x" / "same", 2, common + "0.1}\n");
  write_checkpoint(dir / "y" / "same", 4, common + "0.2, eps: '1'}\n");
  const std::string page = page_of({dir / "x" / "same", dir / "y" / "same"});
  CHECK(fault_of_page(page) == "");
  CHECK(points_of(page, "loss", (dir / "x" / "same").string()).size() == 3);
  CHECK(points_of(page, "loss", (dir / "y" / "same").string()).size() == 5);
  // The sets of a run have its colour, and dashes of their own.
  const std::string validation = element_of(page, "validation");
  CHECK(has(validation, "<path class=\"dashed\""));
  CHECK(has(validation, "<path class=\"dotted\""));
  CHECK(points_of(page, "f1", (dir / "x" / "same").string() + ", validation, train") ==
        std::map<double, double>{{0, 3}});
  const std::string table = element_of(page, "differences");
  CHECK(
      has(table, R"(<td class="text">optimizer.lr</td><td class="text">0.1</td><td class="text">0.2</td>)"));
  CHECK(has(
      table,
      R"(<td class="text">optimizer.eps</td><td class="text">(absent)</td><td class="text">&#39;1&#39;</td>)"));
  CHECK_FALSE(has(table, "betas"));
  CHECK_FALSE(has(table, "seed"));
  CHECK(flattened("a: {b: [1, 2], c: {}, d: null}\ne: x\n") ==
        std::vector<std::pair<std::string, std::string>>{
            {"a.b", "[1, 2]"}, {"a.c", "{}"}, {"a.d", "null"}, {"e", "x"}});
}

TEST_CASE("report: experts, by block and step") {
  const TestDir dir;
  write_run(dir / "a", 4, R"(, "expert_tokens": [[3, 1], [2, 2]], "expert_imbalance": [1.5, 1])");
  const std::string page = page_of({dir / "a"});
  CHECK(fault_of_page(page) == "");
  const auto cells = values_of(page, "imbalance-0");
  CHECK(cells == std::vector<double>{1.5, 1.5, 1.5, 1.5, 1, 1, 1, 1});
  CHECK(values_of(page, "loads-0") == std::vector<double>{1.5, 0.5, 1, 1});
}

TEST_CASE("report: a pipeline's profile, its last step only") {
  const TestDir dir;
  write_run(dir / "a", 2);
  fs::create_directories(dir / "a" / "profile");
  nlohmann::json events = nlohmann::json::array();
  const auto add = [&](const char* name, const char* cat, int rank, double ts, double dur, int microbatch) {
    events.push_back({{"ph", "X"},
                      {"name", name},
                      {"cat", cat},
                      {"pid", rank},
                      {"tid", 1},
                      {"ts", ts},
                      {"dur", dur},
                      {"args", {{"microbatch", microbatch}, {"chunk", 0}}}});
  };
  for (const double step : {0.0, 1000.0}) {
    add("forward", "pipeline", 0, step + 10, 100, 0);
    add("forward", "pipeline", 0, step + 110, 100, 1);
    add("backward", "pipeline", 0, step + 300, 200, 0);
    add("forward", "pipeline", 1, step + 120, 100, 0);
    add("gemm", "kernel", 1, step + 5, 5, 0);
    add("step", "step", 0, step, 900, 0);
    events.back()["args"] = {{"step", step > 0 ? 4 : 3}};
  }
  spit(dir / "a" / "profile" / "steps_3-4.json", nlohmann::json{{"traceEvents", events}}.dump());
  const auto profile = read_pipeline_profile(dir / "a" / "profile" / "steps_3-4.json");
  REQUIRE(profile.lanes.size() == 2);
  CHECK(profile.lanes[0].events.size() == 3);
  CHECK(profile.lanes[1].events.size() == 1);
  CHECK(profile.lanes[1].events[0].begin == doctest::Approx(110e-6));
  CHECK(profile.seconds == doctest::Approx(490e-6));
  CHECK(profile.step == 4);
  const std::string page = page_of({dir / "a"});
  CHECK(fault_of_page(page) == "");
  CHECK(has(page, "rank 1, forward, microbatch 0, chunk 0: 0.1 ms from 0.11 ms on"));
  spit(dir / "a" / "profile" / "steps_3-4.json", "[]");
  CHECK_THROWS_WITH_AS(read_pipeline_profile(dir / "a" / "profile" / "steps_3-4.json"),
                       doctest::Contains("want a Chrome trace"), Error);
  CHECK(has(page_of({dir / "a"}), "steps_3-4.json: want a Chrome trace"));
}

TEST_CASE("report: a long log gives a page of bounded size") {
  const TestDir dir;
  write_run(dir / "a", 20'000, R"(, "expert_tokens": [[3, 1]], "expert_imbalance": [1.5])");
  const std::string page = page_of({dir / "a"});
  CHECK(fault_of_page(page) == "");
  CHECK(page.size() < 3'000'000);
  const auto loss = points_of(page, "loss", "training");
  CHECK(loss.size() <= 1002);
  CHECK(loss.begin()->second == 8);
  CHECK(loss.rbegin()->second == 8.0 / 20'000);
  CHECK(values_of(page, "imbalance-0").size() <= 120);
}

TEST_CASE("report: how far a run has come") {
  const TestDir dir;
  write_run(dir / "a", 3);
  CHECK(read_run(dir / "a").progress == Progress::unknown);
  const auto recipe = [](const char* steps) {
    return cat("step_scheduler: {", steps, "}\ndataset: {_target_: squad, dataset_name: absent.json}\n");
  };
  write_checkpoint(dir / "a", 2, recipe("max_steps: 3"));
  CHECK(read_run(dir / "a").progress == Progress::finished);
  write_checkpoint(dir / "a", 2, recipe("max_steps: 4"));
  CHECK(read_run(dir / "a").progress == Progress::stopped);
  CHECK(read_run(dir / "a").progress_text ==
        "stopped after 3 steps of at most 4; the newest checkpoint has 3");
  // The state's place in the data is the end of its only epoch: no row is left.
  write_checkpoint(dir / "a", 2, recipe("num_epochs: 1"));
  CHECK(read_run(dir / "a").progress == Progress::finished);
  write_checkpoint(dir / "a", 2, recipe("num_epochs: 2"));
  CHECK(read_run(dir / "a").progress == Progress::stopped);
  const RunLock lock(dir / "a");
  CHECK(read_run(dir / "a").progress == Progress::under_way);
}

TEST_CASE("report: how a run has ended, as its history says") {
  const TestDir dir;
  write_run(dir / "a", 3);
  const auto with = [&](const std::string& more) {
    spit(dir / "a" / "history.jsonl", R"({"step": 0, "event": "start", "total_steps": 9})"
                                      "\n" +
                                          more);
    return read_run(dir / "a");
  };
  CHECK(with("").progress == Progress::unknown);
  CHECK(has(with("").progress_text, "3 steps done; history.jsonl has no end"));
  CHECK(with(R"({"step": 3, "event": "end", "signal": 0, "text": "done"})"
             "\n")
            .progress == Progress::finished);
  const RunData stopped = with(R"({"step": 3, "event": "end", "signal": 15, "text": "stopped by signal 15"})"
                               "\n");
  CHECK(stopped.progress == Progress::stopped);
  CHECK(stopped.progress_text == "stopped after 3 steps: stopped by signal 15");
  const RunData failed = with(R"({"step": 3, "event": "error", "rank": 1, "text": "no space"})"
                              "\n");
  CHECK(failed.progress == Progress::stopped);
  CHECK(failed.progress_text.starts_with("failed after 3 steps: "));
  CHECK(has(failed.progress_text, "no space"));
}

TEST_CASE("report: text that came out of variables is not on the page") {
  const TestDir dir;
  write_run(dir / "a", 1);
  ::setenv("NEMOCUBE_TEST_SECRET", "hunter2", 1);
  write_checkpoint(dir / "a", 0,
                   "dataset: {_target_: mock}\nvalidation_dataset: {_target_: squad, dataset_name: "
                   "'${oc.env:NEMOCUBE_TEST_SECRET}'}\nevaluation: {squad_metrics: true, predictions_path: "
                   "'/tmp/${oc.env:NEMOCUBE_TEST_SECRET}/said.json'}\n");
  const std::string page = page_of({dir / "a"});
  ::unsetenv("NEMOCUBE_TEST_SECRET");
  CHECK_FALSE(has(page, "hunter2"));
  CHECK(has(page, "/tmp/${oc.env:NEMOCUBE_TEST_SECRET}/said.json"));
}

TEST_CASE("report: a log whose steps go back gives a page all the same") {
  const TestDir dir;
  fs::create_directories(dir / "a");
  spit(dir / "a" / "training.jsonl", training_line(7, "") + training_line(9, "") + training_line(2, ""));
  CHECK(fault_of_page(page_of({dir / "a"})) == "");
}

TEST_CASE("report: predictions with their questions, right and wrong") {
  const TestDir dir;
  write_run(dir / "a", 1);
  spit(
      dir / "data.jsonl",
      R"({"id": "1", "context": "red blue", "question": "Which <first>?", "answers": {"text": ["red"], "answer_start": [0]}})"
      "\n"
      R"({"id": "2", "context": "red blue", "question": "Which last?", "answers": {"text": ["blue"], "answer_start": [4]}})"
      "\n");
  spit(dir / "said.json", R"({"1": "The red", "2": "green & red", "other": "x"})");
  write_checkpoint(
      dir / "a", 0,
      cat("dataset: {_target_: squad, dataset_name: ", (dir / "data.jsonl").string(),
          "}\nvalidation_dataset: {_target_: squad, dataset_name: ", (dir / "data.jsonl").string(),
          "}\nevaluation: {squad_metrics: true, predictions_path: ", (dir / "said.json").string(), "}\n"));
  const std::string page = page_of({dir / "a"});
  CHECK(fault_of_page(page) == "");
  CHECK(has(page, "2 questions, exact match 50 %, F1 50 %"));
  CHECK(has(page, "right</td><td class=\"text\">Which &lt;first&gt;?</td><td class=\"text\">The red</td>"));
  CHECK(has(page,
            "wrong</td><td class=\"text\">Which last?</td><td class=\"text\">green &amp; red</td><td "
            "class=\"text\">blue<"));
  fs::remove(dir / "said.json");
  const std::string gone = page_of({dir / "a"});
  CHECK(has(gone, "said.json"));
  CHECK(occurrences(gone, "the working directory") == 1);
  write_checkpoint(
      dir / "a", 0,
      cat("dataset: {_target_: squad, dataset_name: gone.json}\nvalidation_dataset: {_target_: squad, "
          "dataset_name: gone.json}\nevaluation: {squad_metrics: true, predictions_path: ",
          (dir / "said.json").string(), "}\n"));
  spit(dir / "said.json", "{}");
  CHECK(occurrences(page_of({dir / "a"}), "the working directory") == 1);
}
