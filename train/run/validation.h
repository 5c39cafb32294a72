#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "data/datasets/dataset.h"
#include "data/tokenizer/tokenizer.h"
#include "train/datasets/row_inputs.h"
#include "train/evaluate/evaluate.h"
#include "train/logging/run_log.h"
#include "train/recipe/recipe.h"

namespace nemocube {

/// Losses by name of the validation set.
using Losses = std::map<std::string, double>;

/// The losses of the recipe's validation sets after `step` that the logs in `folder` hold.
Losses logged_losses(const Recipe& recipe, const std::filesystem::path& folder, std::int64_t step);

/// The validation sets of a recipe, ready to be used after any step of a run.
class Validation {
 public:
  /// Reads the data. Throws Error when it does not fit the model's vocabulary, or, on every rank of `ranks`
  /// (null: this one alone), where it differs among them.
  Validation(const Recipe& recipe, const ModelConfig& config, Communicator* ranks = nullptr);
  std::size_t sets() const { return sets_.size(); }
  /// The inputs of the rows of each set, by name.
  const std::map<std::string, RowInputs>& rows() const { return rows_; }

  /// Where in a run, and for whom.
  struct Moment {
    std::int64_t step = 0, epoch = 0;
    double lr = 0;
    std::int64_t consumed_samples = 0;
    RunLog* log = nullptr;  ///< null on all ranks but the first
  };
  /// Of several ranks, all poll `together` at the same points; each independent replica polls `alone` at its
  /// own.
  struct Stop {
    StopAsked together, alone;
  };
  /// Validates the sets that are not in `known`, one after another, and logs a line for each. Returns the
  /// losses by name of the set, `known` included. Once stopped, the current set and the remaining ones are
  /// neither logged nor returned.
  Losses run(ParallelModel& model, const Moment& moment, const Stop& stop, const Losses& known = {}) const;

  /// Losses of `step` that an earlier process recorded in losses.json of the checkpoint saved after that
  /// step, else in the logs in `folder`. Sets that the process did not finish are absent.
  Losses known_losses(const std::filesystem::path& checkpoint, const std::filesystem::path& folder,
                      std::int64_t step) const;

 private:
  struct Set {
    DatasetSection section;
    std::optional<Tokenizer> tokenizer;
    std::shared_ptr<const Dataset> dataset;
    std::optional<Corruption> corruption;
    std::vector<std::int64_t> stop_ids;         // where questions are to be answered
    std::optional<ChatTemplate> chat_template;  // the same
  };
  const Recipe& recipe_;
  std::map<std::string, Set> sets_;
  std::map<std::string, RowInputs> rows_;
};

/// Warns of each validation set of the recipe whose rows have other inputs than in a checkpoint. The run goes
/// on all the same, because its place counts in the training data.
void warn_of_other_rows(const Recipe& recipe, const std::map<std::string, RowInputs>& written,
                        const std::map<std::string, RowInputs>& now);

}  // namespace nemocube
