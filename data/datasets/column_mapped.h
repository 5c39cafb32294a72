#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/datasets/completion.h"
#include "data/datasets/row_source.h"
#include "data/tokenizer/tokenizer.h"

/// Rows whose columns a recipe names: instructions and their answers (NeMo AutoModel's
/// ColumnMappedTextInstructionDataset).
namespace nemocube {

/// The names of the columns. Prompt and completion are {question: prompt, answer: completion}; rows in
/// Alpaca's form are {context: instruction, question: input, answer: output}.
struct ColumnMapping {
  std::optional<std::string> context, question;  ///< at least one of them
  std::string answer;
};

struct MappedRow {
  std::string id;                                ///< the row's `id`, or "row 7" (counted from 0)
  std::optional<std::string> context, question;  ///< nothing where the row has no such column, or null
  std::string answer;
  std::string file{}, place{};  ///< where the row is: "f.jsonl", "line 7"
};

/// `number` counts the rows of all files from 0. Throws Error naming file, row and column: a row without the
/// column of the answer, or without all columns of the prompt; a value that is no text.
MappedRow read_mapped_row(const JsonView& row, std::int64_t number, const ColumnMapping& mapping);

struct ColumnMappedOptions {
  std::vector<std::filesystem::path> files{};
  ColumnMapping mapping{};
  RowSelection selection{};
  bool answer_only_loss_mask = true;               ///< false: the prompt is a target, too
  AnswerStart answer_start = AnswerStart::answer;  ///< without a chat template
  std::optional<ChatTemplate> chat_template{};
  RowOptions rows{};  ///< Truncation::context cuts the context; with a chat template it is an Error
};

/// Without a chat template: context and question, where present, each with a space behind, then the answer
/// (completion_row()). With a template: the context as the system's message, which is there even when empty,
/// the question as the user's, the answer as the assistant's (chat_row()).
TokenRow column_mapped_row(const MappedRow& row, const Tokenizer& tokenizer,
                           const ColumnMappedOptions& options);

/// Throws Error for Truncation::context with a chat template.
RowSource column_mapped_rows(const Tokenizer& tokenizer, const ColumnMappedOptions& options);

}  // namespace nemocube
