#include "train/look/report/read_run.h"

#include <algorithm>

#include "core/error.h"
#include "core/log.h"
#include "core/quote.h"
#include "data/files/regular_file.h"
#include "data/hf/hf_config.h"
#include "train/checkpoint/checkpoint_folder.h"
#include "train/logging/jsonl.h"
#include "train/logging/run_history.h"
#include "train/logging/run_log.h"
#include "train/look/watch/watched_run.h"
#include "train/run/run_lock.h"

namespace nemocube::run_report {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t most_recipe_bytes = std::int64_t{16} << 20;
constexpr std::size_t most_branches = 6;

fs::path checked_folder(const fs::path& folder) {
  std::error_code error;
  const std::string name = quote(folder.string());
  require(fs::exists(folder, error), "report: ", name,
          ": there is no such directory; want that of a run "
          "(checkpoint.checkpoint_dir)");
  require(fs::is_directory(folder, error), "report: ", name, ": want the directory of a run, got a file");
  const fs::path log = folder / "training.jsonl";
  require(fs::is_regular_file(log, error) && is_run_log(log), "report: ", name,
          ": want the directory of a run, with the log training.jsonl",
          fs::exists(log, error) ? "; the file of that name is no log of a run"
                                 : "; it has none: a run writes it when its first step is done");
  return folder;
}

std::string name_of(const fs::path& folder) {
  std::error_code error;
  const fs::path whole = fs::absolute(folder, error).lexically_normal();
  const std::string last = whole.filename().string();
  return last.empty() ? whole.parent_path().filename().string() : last;
}

/// The regular files of a folder that a run may be changing.
std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error))
    if (std::error_code none; entry->is_regular_file(none)) files.push_back(entry->path());
  return files;
}

/// The run may have renamed or removed a log by now: the page then lacks that log, and a warning says so.
void read_or_warn(const auto& read) {
  try {
    read();
  } catch (const Error& e) {
    log_warning(e.what(), "; the page is made without");
  }
}

void read_validation(RunData& run) {
  for (const fs::path& path : files_of(run.folder)) {
    const std::string file = path.filename().string();
    if (!file.starts_with("validation") || !file.ends_with(".jsonl")) continue;
    std::string set = "default";
    if (file.starts_with("validation_")) set = file.substr(11, file.size() - 11 - 6);
    if (RunLog::file_name(set) != file) continue;
    read_or_warn([&] {
      if (is_run_log(path)) run.validation.emplace(set, read_validation_log(path));
    });
  }
}

/// training.jsonl in abandoned/, with and without a number, and training.jsonl.branch_N of a run that has
/// gone back.
void read_branches(RunData& run) {
  std::vector<fs::path> logs;
  for (const fs::path& folder : {run.folder / "abandoned", run.folder})
    for (const fs::path& path : files_of(folder)) {
      const char* beginning = folder == run.folder ? "training.jsonl.branch_" : "training.jsonl";
      if (path.filename().string().starts_with(beginning)) logs.push_back(path);
    }
  std::ranges::sort(logs);
  for (const fs::path& log : logs) {
    if (run.left_branches.size() == most_branches) break;
    read_or_warn([&] {
      if (!is_run_log(log)) return;
      TrainingLog read = read_training_log(log);
      if (const auto loss = read.curves.find("loss"); loss != read.curves.end())
        run.left_branches.push_back({log.lexically_relative(run.folder).string(), std::move(loss->second)});
    });
  }
}

void read_recipe(RunData& run, const fs::path& checkpoint) {
  try {
    run.recipe_text = read_text_file(checkpoint / "config.yaml", most_recipe_bytes);
    run.recipe = parse_recipe(*run.recipe_text, (checkpoint / "config.yaml").string(), {}, RecipeUse::data);
  } catch (const Error& e) {
    run.no_recipe = e.what();
  }
}

void read_or_leave(auto& target, const auto& read) {
  try {
    target = read();
  } catch (const Error& e) {
    log_debug("report: ", e.what());
  }
}

/// The checkpoint's recipe, model and state. A checkpoint that a run prunes at this moment counts as absent.
void read_checkpoint(RunData& run) {
  const auto checkpoint = CheckpointFolder(run.folder, "").newest();
  if (!checkpoint) {
    run.no_recipe = "the run has no checkpoint, whose config.yaml holds the recipe";
    return;
  }
  read_recipe(run, *checkpoint);
  read_or_leave(run.state, [&] { return read_run_state(*checkpoint / "state.json"); });
  read_or_leave(run.model, [&] { return read_hf_config(*checkpoint / "model"); });
}

void read_profile(RunData& run) {
  run.no_pipeline =
      "no profile/steps_A-B.json in the directory of the run; train --profile steps=A-B writes one";
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run.folder / "profile", error))
    if (const std::string file = entry.path().filename().string();
        file.starts_with("steps_") && file.ends_with(".json") && entry.is_regular_file(error))
      files.push_back(entry.path());
  if (files.empty()) return;
  const auto newest = std::ranges::max_element(files, {}, [](const fs::path& file) {
    std::error_code ignored;
    return fs::last_write_time(file, ignored);
  });
  try {
    run.pipeline = read_pipeline_profile(*newest);
  } catch (const Error& e) {
    run.no_pipeline = e.what();
  }
}

/// Whether the newest checkpoint is that of the recipe's last step.
bool is_finished(const RunData& run) {
  if (!run.state || !run.recipe || run.state->step != run.training.last_step + 1) return false;
  const StepSchedulerSection& steps = run.recipe->step_scheduler;
  if (steps.max_steps && run.state->step >= *steps.max_steps) return true;
  const std::int64_t left = run.state->loader.rows - run.state->loader.next_index;
  return steps.num_epochs && run.state->loader.epoch + 1 >= *steps.num_epochs &&
         left < (run.recipe->dataloader.drop_last ? steps.global_batch_size : 1);
}

/// What history.jsonl says of the last start.
WatchedRun read_history(const fs::path& folder) {
  WatchedRun history(1);
  if (const fs::path file = folder / history_file; fs::exists(file))
    read_or_warn([&] {
      for_each_file_line(file, most_line_bytes,
                         [&](std::string_view line, std::int64_t) { history.history_line(line); });
    });
  return history;
}

void judge_progress(RunData& run) {
  const WatchedRun history = read_history(run.folder);
  const std::int64_t done = run.training.last_step + 1;
  std::string steps = counted(done, "step");
  if (run.recipe && run.recipe->step_scheduler.max_steps)
    steps += cat(" of at most ", *run.recipe->step_scheduler.max_steps);
  if (is_run_locked(run.folder)) {
    run.progress = Progress::under_way;
    run.progress_text = cat("under way, ", steps, " done");
  } else if (history.end && (history.failed || history.signal != 0)) {
    run.progress = Progress::stopped;
    run.progress_text = cat(history.failed ? "failed after " : "stopped after ", steps, ": ", *history.end);
  } else if (history.end || is_finished(run)) {
    run.progress = Progress::finished;
    run.progress_text = cat("finished after ", counted(done, "step"));
  } else if (history.start) {
    run.progress_text =
        cat(steps, " done; history.jsonl has no end: under way on another machine, or killed");
  } else if (run.state && run.recipe) {
    run.progress = Progress::stopped;
    run.progress_text = cat("stopped after ", steps, "; the newest checkpoint has ", run.state->step);
  } else {
    run.progress_text = cat("not under way on this machine, ", steps, " done");
  }
}

}  // namespace

RunData read_run(const fs::path& folder) {
  RunData run;
  run.folder = checked_folder(folder);
  run.name = name_of(folder);
  run.training = read_training_log(folder / "training.jsonl");
  require(run.training.lines > 0, "report: ", quote(folder.string()),
          ": training.jsonl has no whole line yet");
  read_validation(run);
  read_branches(run);
  read_checkpoint(run);
  read_profile(run);
  if (run.recipe)
    run.predictions = read_predictions(*run.recipe, run.no_predictions);
  else
    run.no_predictions.push_back(cat("the recipe, which names their file, is not known: ", run.no_recipe));
  judge_progress(run);
  return run;
}

}  // namespace nemocube::run_report
