#include "train/look/watch/watch.h"

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>

#include "core/error.h"
#include "core/log.h"
#include "train/commands/commands.h"
#include "train/logging/run_history.h"

namespace nemocube {
namespace {

namespace fs = std::filesystem;

bool has_logs(const fs::path& folder) {
  std::error_code none;
  return fs::exists(folder / "training.jsonl", none) || fs::exists(folder / history_file, none);
}

/// Refuses a directory of runs that is none itself. A run may be watched before it begins.
void check_run(const fs::path& run) {
  if (has_logs(run)) return;
  std::error_code none;
  std::set<std::string> below;
  for (const auto& entry : fs::directory_iterator(run, none))
    if (has_logs(entry.path())) below.insert(entry.path().string());
  if (below.empty()) return;
  std::string names;
  std::size_t named = 0;
  for (const std::string& name : below)
    if (named++ < 5) names += cat(names.empty() ? "" : ", ", name);
  fail("watch: ", run.string(), ": is no run, but holds ", counted(std::ssize(below), "run"), ": ", names,
       below.size() > 5 ? ", .." : "", "; want one of them");
}

void run(const WatchOptions& options) {
  require(options.interval >= 0.1 && options.interval <= 3600,
          "watch: --interval: want 0.1 to 3600 seconds, got ", options.interval);
  require(!options.run.empty(), "watch: the name of the run's directory is empty");
  check_run(options.run);
  if (const int signal = watch_run(options); signal != 0) std::exit(128 + signal);
}

}  // namespace

void add_watch_command(Command& app) {
  auto o = std::make_shared<WatchOptions>();
  Command* command =
      app.add_subcommand("watch", "Show a run that goes on, or has ended, from its logs alone");
  command->add_option("run", o->run, "directory of the run: checkpoint.checkpoint_dir of its recipe")
      ->required();
  command->add_option("--interval", o->interval, "seconds between two looks at the logs, 0.1 to 3600")
      ->capture_default_str()
      ->check(number());
  command->add_flag("--once", o->once, "print one view and end, as without a terminal");
  command->add_flag("--keep", o->keep, "go on when the run has ended");
  command->add_option("--steps", o->steps, "the last steps that are drawn, and that means are taken over")
      ->capture_default_str()
      ->check(in_range(2, 1'000'000));
  command->footer(
      "On a terminal the view is redrawn until the run ends; q or Ctrl-C ends it sooner. Nothing is written "
      "into the run's "
      "directory, and nothing is locked.");
  command->callback([o] { run(*o); });
}

}  // namespace nemocube
