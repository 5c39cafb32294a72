#pragma once
#include <string>
#include <vector>

#include "train/recipe/recipe.h"

namespace nemocube::run_report {

struct ShownAnswer {
  std::string question, prediction;
  std::vector<std::string> answers;  ///< empty: the question has no answer in the text
  bool right = false;
  double f1 = 0;  ///< in [0, 1]
};

/// Answers of a validation set, as write_predictions() (train/evaluate/evaluate.h) keeps them.
struct Predictions {
  std::string set;                   ///< name of the validation set
  std::string file;                  ///< the path in the recipe
  std::vector<ShownAnswer> answers;  ///< the first of the data, at most 50
  std::int64_t count = 0;            ///< of all questions that have a prediction
  double exact_match = 0, f1 = 0;    ///< percent, of all
};

/// The predictions of each validation set of questions. Relative paths of the recipe start from the working
/// directory. `absent` gets a sentence for each set that cannot be shown.
std::vector<Predictions> read_predictions(const Recipe& recipe, std::vector<std::string>& absent);

}  // namespace nemocube::run_report
