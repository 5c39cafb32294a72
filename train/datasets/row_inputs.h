#pragma once
#include <optional>
#include <string>
#include <vector>

#include "data/datasets/dataset.h"
#include "train/recipe/recipe.h"

/// The inputs of a data set's rows. Ranks compare the inputs before they train, and a checkpoint holds them,
/// so that a run does not go on with other rows.
namespace nemocube {

struct RowInput {
  std::string role;  ///< "data file 1", "tokenizer.json", "chat template": the same when the files have moved
  std::string place;  ///< where the contents are: a path, for messages
  FileSum sum;        ///< of the contents
  friend bool operator==(const RowInput&, const RowInput&) = default;
};
using RowInputs = std::vector<RowInput>;  ///< each role once

/// For a section whose rows are written with a tokenizer: the tokenizer's files, the texts of the chat
/// templates in use (for conversations without tools and, where it differs, with tools), and the special
/// tokens by name. Only contents count, not paths. Throws Error as recipe_chat_templates() does.
RowInputs tokenizer_inputs(const Recipe& recipe, const DatasetSection& section);
/// The files of a data set, in its order, with the sums of the pass that has read them.
RowInputs data_inputs(const Dataset& dataset);
/// Both kinds of inputs: of a section, and of the data set that was made of it.
RowInputs row_inputs(const Recipe& recipe, const DatasetSection& section, const Dataset& dataset);
/// 16 rows, spread evenly over the data set: ids, labels and lengths. Not all differences are in files.
RowInputs sampled_rows(const Dataset& dataset);

/// "a.jsonl (data file 1)": the place with the role
std::string name_of(const RowInput& input);

/// "a.jsonl (data file 1) has changed since the checkpoint was written: ...": the first file or
/// text of `now` that differs from `written`, or that only one of the two has. Empty: the
/// contents are the same; paths do not count.
std::string change_of_rows(const RowInputs& written, const RowInputs& now);
/// Throws Error with change_of_rows(), unless a run with rows of the inputs `now` can go on at a place in
/// rows of the inputs `written`.
void want_same_rows(const RowInputs& written, const RowInputs& now);

}  // namespace nemocube
