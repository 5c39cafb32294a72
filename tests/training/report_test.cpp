#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/support/mpirun.h"
#include "tests/support/page.h"
#include "tests/support/paths.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;
using Points = std::map<double, double>;

Points curve_of(const fs::path& log, const char* field) {
  Points points;
  for (const Json& line : read_jsonl(log)) points[line["step"]] = line[field];
  return points;
}

ProcessResult report(const RunDir& dir, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {program(), "report"});
  return run_process(arguments, dir.path());
}

/// The curves of the page are those of the logs, bit for bit.
void check_curves(const std::string& page, const fs::path& run, const std::string& series) {
  const Points loss = curve_of(run / "training.jsonl", "loss");
  REQUIRE(loss.size() == 12);
  CHECK(points_of(page, "loss", series) == loss);
  for (const char* field : {"grad_norm", "lr", "tps", "mem", "aux_loss"})
    CHECK(points_of(page, field, series) == curve_of(run / "training.jsonl", field));
}

}  // namespace

TEST_CASE("report: of a run, one page with all losses of its logs, its predictions and its recipe") {
  const RunDir dir;
  const ProcessResult run =
      dir.train({"evaluation.squad_metrics=true", "evaluation.predictions_path=said.json",
                 "evaluation.max_new_tokens=4", "moe_metrics.enabled=true"});
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const ProcessResult made = report(dir, {"straight"});
  CAPTURE(made.err);
  REQUIRE(made.exit_code == 0);
  CHECK(made.out == "straight/report.html\n");
  const std::string page = slurp(dir / "straight" / "report.html");
  CHECK(fault_of_page(page) == "");
  check_curves(page, dir / "straight", "training");
  CHECK(points_of(page, "loss", "validation") == curve_of(dir / "straight" / "validation.jsonl", "val_loss"));
  CHECK(points_of(page, "answers", "F1, validation") ==
        curve_of(dir / "straight" / "validation.jsonl", "f1"));
  CHECK(values_of(page, "imbalance-0").size() == 12);
  for (const char* text : {"finished after 12 steps", "4 questions, exact match", "lr_warmup_steps: 3",
                           "1 moe", "train --profile steps=A-B writes one"})
    CHECK_MESSAGE(page.find(text) != page.npos, text);
  // The page leaves the run as it is: the same command goes on where it ended.
  const ProcessResult again = dir.train();
  CHECK(again.exit_code == 0);
  CHECK(again.err.find("nothing to train") != std::string::npos);
}

TEST_CASE("report: a run on several ranks has its times, and two runs are compared") {
  const RunDir dir;
  REQUIRE(dir.train().exit_code == 0);
  const ProcessResult run = run_process(
      mpirun(2, RunDir::train_command({"step_scheduler.local_batch_size=1", "distributed.ep_size=2",
                                       "optimizer.lr=0.005", "checkpoint.checkpoint_dir=other"})),
      dir.path());
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const auto log = read_jsonl(dir / "other" / "training.jsonl");
  for (const Json& line : log) {
    CHECK(line["data_seconds"] >= 0);
    CHECK(line["communication_seconds"] > 0);
    CHECK(line["communication_waiting_seconds"] <= line["communication_seconds"]);
  }
  const ProcessResult made = report(dir, {"straight", "other", "--output", "both.html"});
  CAPTURE(made.err);
  REQUIRE(made.exit_code == 0);
  CHECK_FALSE(fs::exists(dir / "straight" / "report.html"));
  const std::string page = slurp(dir / "both.html");
  CHECK(fault_of_page(page) == "");
  check_curves(page, dir / "straight", "straight");
  check_curves(page, dir / "other", "other");
  CHECK(values_of(page, "times-0").size() == 2 * 12);
  CHECK(values_of(page, "times-1").size() == 4 * 12);
  CHECK(element_of(page, "differences").find("optimizer.lr") != std::string::npos);
}

TEST_CASE(
    "report: a directory that is none of a run, and a place for the page that cannot be used, are refused") {
  const RunDir dir;
  const ProcessResult refused = report(dir, {"samples"});
  CHECK(refused.exit_code == 2);
  CHECK(refused.err.find("report: 'samples': want the directory of a run") != std::string::npos);
  REQUIRE(
      dir.train({"step_scheduler.max_steps=1", "lr_scheduler=null", "checkpoint.enabled=false"}).exit_code ==
      0);
  const ProcessResult no_place = report(dir, {"straight", "--output", "absent/page.html"});
  CHECK(no_place.exit_code == 2);
  CHECK(no_place.err.find("absent") != std::string::npos);
  REQUIRE(report(dir, {"straight"}).exit_code == 0);
  CHECK(slurp(dir / "straight" / "report.html").find("the run has no checkpoint, whose") !=
        std::string::npos);
}
