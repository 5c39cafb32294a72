#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "data/datasets/row.h"
#include "data/tokenizer/tokenizer.h"

/// Rows of a prompt and its completion, without a chat template.
namespace nemocube {

/// Where the targets of a row begin. The prompt ends in a space.
enum class AnswerStart {
  answer,  ///< at the first token with a byte of the answer: at " Paris", or at the "1" of "12th", whose
           ///< space is a token of its own
  space,   ///< at the token with the space before the answer, even if this token is only the space; the
           ///< targets are then exactly the text that follows the prompt without its space at generation
  prompt,  ///< after as many tokens as the prompt has alone, as NeMo AutoModel does. Where the space is part of the
           ///< answer's first token, this token is no target: the prompt alone ends in a token for the space.
};

struct Completion {
  std::string id;
  std::string prompt;  ///< ends in a space
  std::string answer;
  std::size_t context_begin = 0,
              context_end = 0;  ///< bytes of the prompt that Truncation::context may remove
};

/// Prompt and answer are tokenised as one string, with the special tokens that the tokenizer puts around it.
/// The answer's tokens and an EOS behind them (RowOptions::append_eos) are the targets; with `answer_only`
/// false all tokens are targets. Throws Error naming `what` when append_eos finds no EOS token.
TokenRow completion_row(std::string_view what, const Completion& completion, const Tokenizer& tokenizer,
                        AnswerStart answer_start, const RowOptions& options, bool answer_only = true);

/// Appends EOS as a target, as options.append_eos says, unless the row ends in EOS, which then is a target.
void append_eos(std::string_view what, TokenRow& row, const Tokenizer& tokenizer, const RowOptions& options);

/// The id that fills padding: the tokenizer's pad id, else rows.pad_id, else the tokenizer's EOS id, else 0.
std::int64_t padding_id(const Tokenizer& tokenizer, const RowOptions& rows);

/// The tokenizer's EOS id, else rows.eos_id. Throws Error naming `what` when there is neither.
std::int64_t eos_to_append(std::string_view what, const Tokenizer& tokenizer, const RowOptions& rows);

}  // namespace nemocube
