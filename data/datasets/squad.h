#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/datasets/row.h"
#include "data/datasets/squad_file.h"
#include "data/tokenizer/tokenizer.h"

/// SQuAD as a fine-tuning task: `Context: {context} Question: {question} Answer: {answer}` and EOS. The
/// answer and EOS are the targets. NeMo Automodel uses this form for tokenizers without a chat template.
namespace nemocube {

/// Where the targets of a row begin.
enum class AnswerStart {
  answer,  ///< at the first token with a byte of the answer: at " Paris", or at the "1" of "12th", whose
           ///< space is a token of its own
  space,   ///< at the token with the space before the answer, even if this token is only the space; the
           ///< targets are then exactly the text that follows squad_prompt() at generation
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

/// The prompt for generation, up to and including "Answer:". The next space is part of the first token of
/// most answers, so the model has never seen a prompt that ends in this space.
std::string squad_prompt(const SquadQuestion& question);

std::shared_ptr<const RowDataset> make_squad_dataset(const Tokenizer& tokenizer, const SquadOptions& options);

/// The id that fills padding: the tokenizer's pad id, else rows.pad_id, else the tokenizer's EOS id, else 0.
std::int64_t padding_id(const Tokenizer& tokenizer, const RowOptions& rows);

/// The tokenizer's EOS id, else rows.eos_id. Throws Error naming `what` when there is neither.
std::int64_t eos_to_append(std::string_view what, const Tokenizer& tokenizer, const RowOptions& rows);

}  // namespace nemocube
