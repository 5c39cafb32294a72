#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"
#include "train/checkpoint/run_state.h"
#include "train/look/report/read_log.h"
#include "train/look/report/read_predictions.h"
#include "train/look/report/read_profile.h"
#include "train/recipe/recipe.h"

namespace nemocube::run_report {

/// How far a run has come.
enum class Progress { under_way, finished, stopped, unknown };

/// The data of a report about one run, read from its directory (checkpoint.checkpoint_dir). The run may be
/// under way. Where a part is absent, a sentence says why.
struct RunData {
  std::filesystem::path folder;
  std::string name;  ///< last part of the folder's path
  TrainingLog training;
  std::map<std::string, ValidationLog> validation;  ///< by name of the set; "default" is the unnamed one
  struct LeftBranch {
    std::string file;
    Curve loss;
  };
  std::vector<LeftBranch> left_branches;  ///< logs of branches that the run has left, or has not yet taken
  std::optional<RunState> state;          ///< of the newest checkpoint
  std::optional<std::string> recipe_text;
  std::optional<Recipe> recipe;
  std::string no_recipe;  ///< why recipe_text is absent, or is not readable as a recipe
  std::optional<ModelConfig> model;
  std::vector<Predictions> predictions;
  std::vector<std::string> no_predictions;
  std::optional<PipelineProfile> pipeline;
  std::string no_pipeline;
  Progress progress = Progress::unknown;
  std::string progress_text;  ///< "under way, 12 steps of at most 100 done"
};

/// Throws Error naming the directory when it does not exist or holds no log of a training run.
RunData read_run(const std::filesystem::path& folder);

}  // namespace nemocube::run_report
