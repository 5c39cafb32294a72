#include "data/datasets/completion.h"

namespace nemocube {

namespace {

/// The first target among the tokens of the whole text.
std::size_t first_target(const Completion& completion, const Tokenizer& tokenizer,
                         const std::vector<TokenSpan>& tokens, AnswerStart start) {
  if (start == AnswerStart::prompt)
    return tokenizer.special_prefix().size() + tokenizer.encode(completion.prompt, false).size();
  const std::size_t begin = completion.prompt.size() - (start == AnswerStart::space ? 1 : 0);
  std::size_t first = 0;
  while (first < tokens.size() && tokens[first].end <= begin) ++first;
  return first;
}

}  // namespace

std::int64_t padding_id(const Tokenizer& tokenizer, const RowOptions& rows) {
  if (tokenizer.pad_id()) return *tokenizer.pad_id();
  return rows.pad_id.value_or(tokenizer.eos_id().value_or(0));
}

std::int64_t eos_to_append(std::string_view what, const Tokenizer& tokenizer, const RowOptions& rows) {
  const auto eos = tokenizer.eos_id() ? tokenizer.eos_id() : rows.eos_id;
  require(eos.has_value(), what,
          ": append_eos wants an eos_token named by tokenizer_config.json or special_tokens_map.json, or an "
          "eos_token_id in the model's config.json; there is neither");
  return *eos;
}

void append_eos(std::string_view what, TokenRow& row, const Tokenizer& tokenizer, const RowOptions& options) {
  if (!options.append_eos) return;
  const std::int64_t eos = eos_to_append(what, tokenizer, options);
  if (row.ids.empty() || row.ids.back() != eos)
    row.append(eos, true);
  else
    row.supervised.back() = true;
}

TokenRow completion_row(std::string_view what, const Completion& completion, const Tokenizer& tokenizer,
                        AnswerStart answer_start, const RowOptions& options, bool answer_only) {
  const auto tokens = tokenizer.encode_with_offsets(completion.prompt + completion.answer, true);
  const std::size_t text_end = tokens.size() - tokenizer.special_suffix().size();
  const std::size_t first = answer_only ? first_target(completion, tokenizer, tokens, answer_start) : 0;
  TokenRow row;
  row.id = completion.id;
  row.leading = static_cast<std::int64_t>(tokenizer.special_prefix().size());
  row.ids.reserve(tokens.size() + 1);
  row.context_begin = row.context_end = -1;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const TokenSpan& token = tokens[i];
    if (token.end > completion.context_begin && token.end <= completion.context_end) {
      if (row.context_begin < 0) row.context_begin = row.size();
      row.context_end = row.size() + 1;
    }
    row.append(token.id, i >= first || i >= text_end);
  }
  if (row.context_begin < 0) row.context_begin = row.context_end = row.leading;
  append_eos(what, row, tokenizer, options);
  return row;
}

}  // namespace nemocube
