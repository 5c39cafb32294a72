#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>
#include <vector>

#include "core/quote.h"
#include "data/json/atomic_file.h"
#include "train/commands/commands.h"
#include "train/logging/run_log.h"
#include "train/look/report/page.h"

namespace nemocube {
namespace {

struct ReportArguments {
  std::vector<std::string> runs;
  std::filesystem::path output;
};

void run(const ReportArguments& o) {
  const std::filesystem::path output =
      o.output.empty() ? std::filesystem::path(o.runs.front()) / "report.html" : o.output;
  std::vector<run_report::RunData> runs;
  for (const std::string& folder : o.runs) runs.push_back(run_report::read_run(folder));
  check_output_place(output);
  write_file_atomically(output, run_report::page_html(runs, utc_timestamp(std::chrono::system_clock::now())));
  std::cout << printable_message(output.string()) << '\n';
}

}  // namespace

void add_report_command(Command& app) {
  auto o = std::make_shared<ReportArguments>();
  Command* command = app.add_subcommand(
      "report", "One HTML page about a training run, or several to compare, from their logs and checkpoints");
  command
      ->add_option("runs", o->runs, "directories of runs (checkpoint.checkpoint_dir); a run may be under way")
      ->required();
  command->add_option("--output", o->output, "file of the page; default: report.html in the first directory");
  command->footer(
      "The page needs no network and no script. It shows curves, the time of a step by part, the load of "
      "experts, the "
      "timeline\nof a pipeline from profile/steps_A-B.json, predictions with their questions, and the "
      "recipe; of several "
      "runs the\ndifferences of their recipes.");
  command->callback([o] { run(*o); });
}

}  // namespace nemocube
