#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/datasets/dataset.h"
#include "data/loader/corruption.h"
#include "data/metrics/squad_score.h"
#include "data/tokenizer/tokenizer.h"
#include "model/stack.h"
#include "parallel/parallel_model/parallel_model.h"
#include "train/evaluate/log_probabilities.h"
#include "train/logging/progress.h"
#include "train/recipe/recipe.h"

namespace nemocube {

/// Polled during long work, which stops early when the function returns true. Once true, the result must stay
/// true. Of several ranks, all poll together and get the same answer, except where independent replicas
/// (ParallelModel::independent_replicas) answer questions.
using StopAsked = std::function<bool()>;

struct ValidationResult {
  /// Sum of token losses / labelled tokens; NaN without labelled tokens. Where tokens are noised, plus the
  /// weighted sum of their losses / noised tokens.
  double loss = 0;
  std::int64_t label_tokens = 0, samples = 0;
  bool complete = true;  ///< false: stopped early, the numbers cover only a part
};
/// Mean loss over a data set, `batch_size` rows at a time, in order, without padding. Polls `stop` before
/// every batch and reports to `progress` the rows with which the device is done. Each replica
/// evaluates its share of the rows; all ranks get the result for all rows. With a `corruption` the loss is
/// that of the corrupted rows, which are the same at every call, and on every grid. `on_rows`, where it is
/// defined, gets the log-probabilities of labels, from the same forward passes; the host then waits for each
/// batch, and there is no corruption. `hold`: the weights that ranks gather once, before the first batch, and
/// give back after the last one (DataParallel::hold). Results do not depend on it.
ValidationResult validate(ParallelModel& model, std::shared_ptr<const Dataset> dataset,
                          std::int64_t batch_size, const KernelChoice* kernels, const StopAsked& stop = {},
                          const OnProgress& progress = {},
                          const std::optional<Corruption>& corruption = std::nullopt,
                          const OnScoredRows& on_rows = {},
                          DataParallel::Held hold = DataParallel::Held::root);

struct AnsweredQuestion {
  std::string id, question, prediction;  ///< an empty prediction says that there is no answer
  std::vector<std::string> answers;
  AnswerScore score;
};
struct SquadResult {
  SquadVersion version = SquadVersion::v1_1;  ///< v2_0 when some question of the section has no answer
  SquadScore score;
  std::vector<AnsweredQuestion> answered;
  bool complete = true;  ///< false: stopped early, the score covers only a part
};
/// Answers the questions of a squad section, put as squad_prompt() says, greedily and scores the answers by
/// the official rules of the data's version. An answer ends at any of `stop_ids`, at the template's end of
/// turn (end_of_turn()), and at a newline when the recipe says so. When the section truncates, a prompt
/// longer than seq_length loses its left end; the special tokens in front stay unless they alone fill
/// seq_length. Polls `stop` at every token. `progress` counts questions; a question that is being answered
/// counts by its share of finished tokens. The replicas share the questions, and all ranks get the whole
/// result. Independent replicas go at their own pace: `stop` must not wait for other ranks. Other replicas
/// proceed together, and poll `stop` between groups of questions only.
SquadResult answer_squad(ParallelModel& model, const Tokenizer& tokenizer, const DatasetSection& section,
                         const EvaluationSection& options, std::vector<std::int64_t> stop_ids,
                         const KernelChoice* kernels, const StopAsked& stop = {},
                         const OnProgress& progress = {},
                         const std::optional<ChatTemplate>& chat_template = std::nullopt);

/// The file for the predictions or log-probabilities of a set: `path` for the set named "default"; for other
/// sets "_NAME" goes before the extension (said.json -> said_train.json).
std::filesystem::path predictions_file(std::filesystem::path path, const std::string& set);
/// Writes question id -> answer as JSON into predictions_file(), completely or not at all.
void write_predictions(const std::filesystem::path& path, const std::string& set, const SquadResult& result);
/// Throws Error when no file can be written at the recipe's evaluation.predictions_path.
void check_predictions_place(const Recipe& recipe);

}  // namespace nemocube
