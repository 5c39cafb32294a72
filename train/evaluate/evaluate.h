#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/datasets/dataset.h"
#include "data/metrics/squad_score.h"
#include "data/tokenizer/tokenizer.h"
#include "model/nemotron_h.h"
#include "train/logging/progress.h"
#include "train/recipe/recipe.h"

namespace nemocube {

/// Asked now and then during long work, which gives up when it is true and stays so.
using StopAsked = std::function<bool()>;

struct ValidationResult {
  double loss = 0;  ///< sum of token losses / labelled tokens; NaN without any
  std::int64_t label_tokens = 0, samples = 0;
  bool complete = true;  ///< false: given up, the numbers are of a part
};
/// Mean loss over a data set, `batch_size` rows at a time, in order, without padding. Asks `stop` before every
/// batch and tells `progress` the rows that are done after it.
ValidationResult validate(NemotronH& model, std::shared_ptr<const Dataset> dataset, std::int64_t batch_size,
                          const KernelChoice* kernels, const StopAsked& stop = {},
                          const OnProgress& progress = {});

struct AnsweredQuestion {
  std::string id, question, prediction;  ///< an empty prediction says that there is no answer
  std::vector<std::string> answers;
  AnswerScore score;
};
struct SquadResult {
  SquadVersion version = SquadVersion::v1_1;  ///< v2_0 when some question of the section has no answer
  SquadScore score;
  std::vector<AnsweredQuestion> answered;
  bool complete = true;  ///< false: given up, the score is of a part
};
/// Greedy answers to the questions of a squad section, stopped at any of `stop_ids` (and at a newline when
/// the recipe says so), scored by the official rules of the data's version. Prompts longer than seq_length
/// lose their left end when the section truncates, but not the special tokens in front unless those alone fill
/// seq_length. Asks `stop` at every token. `progress` counts questions; for those that are being answered, the share
/// of their tokens that is done.
SquadResult answer_squad(NemotronH& model, const Tokenizer& tokenizer, const DatasetSection& section,
                         const EvaluationSection& options, std::vector<std::int64_t> stop_ids,
                         const KernelChoice* kernels, const StopAsked& stop = {},
                         const OnProgress& progress = {});

/// Writes question id -> answer as JSON, whole or not at all: to `path` for the set named "default", else with
/// "_NAME" before the extension (said.json -> said_train.json).
void write_predictions(const std::filesystem::path& path, const std::string& set, const SquadResult& result);
/// Throws Error when the recipe's evaluation.predictions_path leads to no place for a file.
void check_predictions_place(const Recipe& recipe);

}  // namespace nemocube
