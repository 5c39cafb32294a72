#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/datasets/row.h"
#include "data/datasets/squad_file.h"
#include "data/tokenizer/tokenizer.h"

/// SQuAD as a fine-tuning task: `Context: {context} Question: {question} Answer: {answer}` and EOS, with the
/// answer and EOS as targets; the form NeMo Automodel uses for tokenizers without a chat template.
namespace nemocube {

/// Where the targets of a row begin.
enum class AnswerStart {
  answer,  ///< the first token with a byte of the answer: " Paris" is a target, and so is "1" of "12th", but
           ///< not the lone " " in front of the 1
  space,  ///< the token with the space in front of the answer, so that the lone " " is a target as well: what
          ///< is trained is then what follows squad_prompt() at generation
};

struct SquadOptions {
  std::string dataset_name{};  ///< a path, see find_squad_file()
  std::string split = "train";
  std::optional<std::int64_t> limit_dataset_samples = std::nullopt;
  AnswerStart answer_start = AnswerStart::answer;
  RowOptions rows{};
};

/// The questions a recipe selects, in file order.
std::vector<SquadQuestion> read_squad(const SquadOptions& options);

/// Prompt and answer are tokenised as one string. Throws Error when append_eos finds no EOS token.
TokenRow squad_row(const SquadQuestion& question, const Tokenizer& tokenizer, const SquadOptions& options);

/// For generation: the prompt up to and with "Answer:". The space after it belongs to the first token of most
/// answers, so a prompt with it would be one the model never saw.
std::string squad_prompt(const SquadQuestion& question);

std::shared_ptr<const RowDataset> make_squad_dataset(const Tokenizer& tokenizer, const SquadOptions& options);

/// What pads are filled with: the tokenizer's pad id, else rows.pad_id, else the tokenizer's EOS id, else 0.
std::int64_t padding_id(const Tokenizer& tokenizer, const RowOptions& rows);

/// The tokenizer's EOS id, else rows.eos_id. Throws Error naming `what` when there is neither.
std::int64_t eos_to_append(std::string_view what, const Tokenizer& tokenizer, const RowOptions& rows);

}  // namespace nemocube
