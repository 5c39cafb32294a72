#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/datasets/row_source.h"
#include "data/tokenizer/tokenizer.h"

/// HellaSwag as a fine-tuning task (Zellers et al., "HellaSwag: can a machine really finish your sentence?",
/// 2019): the beginning of a text, with the right one of four endings as the target.
namespace nemocube {

struct HellaSwagQuestion {
  std::string id;       ///< the row's `ind`, or "row 7" (counted from 0)
  std::string context;  ///< `ctx`
  std::string ending;   ///< `endings[label]`
};

/// A row has `ctx`, `endings` (texts) and `label`, the number of the right ending as an integer or a text;
/// rows of the test split, whose label is empty, are errors. `number` counts the rows of all files from 0.
/// Throws Error naming file and row.
HellaSwagQuestion read_hellaswag(const JsonView& row, std::int64_t number);

struct HellaSwagOptions {
  std::vector<std::filesystem::path> files{};
  RowSelection selection{};
  std::string separator = " ";    ///< text between context and ending; "" in NeMo AutoModel
  bool pad_to_max_length = true;  ///< pads rows to the longest of the data set, rounded up to a multiple of 8
  bool append_eos = true;         ///< EOS is the last target; in NeMo AutoModel only by the tokenizer
  std::optional<std::int64_t> eos_id{}, pad_id{};  ///< as in RowOptions
};

/// The ids of the context, then the ids of separator and ending, tokenised apart, between the special tokens
/// that the tokenizer puts around a text.
TokenRow hellaswag_row(const HellaSwagQuestion& question, const Tokenizer& tokenizer,
                       const HellaSwagOptions& options);

/// As in NeMo AutoModel, rows keep their last id as an input (RowOptions::keep_last).
RowSource hellaswag_rows(const Tokenizer& tokenizer, const HellaSwagOptions& options);

}  // namespace nemocube
