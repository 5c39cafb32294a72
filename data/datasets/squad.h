#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/datasets/completion.h"
#include "data/datasets/row_source.h"
#include "data/datasets/squad_file.h"
#include "data/tokenizer/tokenizer.h"

/// SQuAD as a fine-tuning task. Without a chat template a row is `Context: {context} Question:
/// {question} Answer: {answer}` and EOS, and the answer and EOS are the targets. With a template, the
/// text up to and including "Answer: " is the user's message and the answer is the assistant's, as in
/// NeMo AutoModel; chat_row() sets the targets.
namespace nemocube {

struct SquadOptions {
  std::string dataset_name{};  ///< a path, see find_squad_file()
  std::string split = "train";
  std::optional<std::int64_t> limit_dataset_samples = std::nullopt;
  AnswerStart answer_start = AnswerStart::answer;  ///< without a chat template
  std::optional<ChatTemplate> chat_template{};
  RowOptions rows{};
};

/// The questions that a recipe selects, in file order. `file`: gets the file of the questions.
std::vector<SquadQuestion> read_squad(const SquadOptions& options, DataFile* file = nullptr);

/// See completion_row() and chat_row().
TokenRow squad_row(const SquadQuestion& question, const Tokenizer& tokenizer, const SquadOptions& options);

/// The prompt for generation. Without a chat template it ends in "Answer:": the next space is part of the
/// first token of most answers, so the model has never seen a prompt that ends in this space. With a template
/// the prompt ends where the assistant begins its answer.
std::string squad_prompt(const SquadQuestion& question,
                         const std::optional<ChatTemplate>& chat_template = std::nullopt);

/// The same rows, for StreamedRows; the file holds flat rows, see read_squad_row().
RowSource squad_rows(const Tokenizer& tokenizer, const SquadOptions& options);
std::shared_ptr<const RowDataset> make_squad_dataset(const Tokenizer& tokenizer, const SquadOptions& options);

}  // namespace nemocube
