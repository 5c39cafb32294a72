#include "data/datasets/squad.h"

#include <algorithm>

#include "core/parallel_for.h"
#include "data/datasets/split.h"

namespace nemocube {

namespace {
constexpr std::string_view context_mark = "Context: ";
}

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

std::vector<SquadQuestion> read_squad(const SquadOptions& options) {
  const DatasetSplit split = with_limit(DatasetSplit::parse(options.split), options.limit_dataset_samples);
  const auto path = find_squad_file(options.dataset_name, split.name);
  std::vector<SquadQuestion> questions = read_squad(path);
  const auto [first, last] = split.rows(path.string(), static_cast<std::int64_t>(questions.size()));
  questions.erase(questions.begin() + last, questions.end());
  questions.erase(questions.begin(), questions.begin() + first);
  return questions;
}

std::string squad_prompt(const SquadQuestion& question) {
  return cat(context_mark, question.context, " Question: ", question.question, " Answer:");
}

TokenRow squad_row(const SquadQuestion& question, const Tokenizer& tokenizer, const SquadOptions& options) {
  const std::string prompt = squad_prompt(question) + ' ';
  const std::size_t target_begin = prompt.size() - (options.answer_start == AnswerStart::space ? 1 : 0);
  const auto tokens = tokenizer.encode_with_offsets(prompt + question.target(), true);
  const auto text_end = tokens.size() - tokenizer.special_suffix().size();
  const std::size_t context_end = context_mark.size() + question.context.size();

  TokenRow row;
  row.id = question.id;
  row.leading = static_cast<std::int64_t>(tokenizer.special_prefix().size());
  row.ids.reserve(tokens.size() + 1);
  row.context_begin = row.context_end = -1;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const TokenSpan& token = tokens[i];
    if (token.end > context_mark.size() && token.end <= context_end) {
      if (row.context_begin < 0) row.context_begin = row.size();
      row.context_end = row.size() + 1;
    }
    row.append(token.id, i >= text_end || token.end > target_begin);
  }
  if (row.context_begin < 0) row.context_begin = row.context_end = row.leading;
  if (options.rows.append_eos) {
    const std::int64_t eos = eos_to_append("SQuAD data set", tokenizer, options.rows);
    if (row.ids.empty() || row.ids.back() != eos)
      row.append(eos, true);
    else
      row.supervised.back() = true;
  }
  return row;
}

std::shared_ptr<const RowDataset> make_squad_dataset(const Tokenizer& tokenizer,
                                                     const SquadOptions& options) {
  const std::vector<SquadQuestion> questions = read_squad(options);
  std::vector<TokenRow> rows(questions.size());
  parallel_for(static_cast<std::int64_t>(rows.size()), 64, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
      rows[i] = squad_row(questions[i], tokenizer, options);
  });
  return std::make_shared<RowDataset>(cat("SQuAD data set ", options.dataset_name, " (", options.split, ")"),
                                      std::move(rows), options.rows, padding_id(tokenizer, options.rows));
}

}  // namespace nemocube
