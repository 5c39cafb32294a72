#include "data/datasets/squad.h"

#include <algorithm>

#include "data/chat/chat.h"
#include "data/datasets/chat_row.h"
#include "data/datasets/split.h"

namespace nemocube {

namespace {

constexpr std::string_view context_mark = "Context: ";

std::string question_text(const SquadQuestion& question) {
  return cat(context_mark, question.context, " Question: ", question.question, " Answer:");
}

Json message(const char* role, std::string content) {
  return {{"role", role}, {"content", std::move(content)}};
}

/// The question alone.
Chat chat_of(const SquadQuestion& question) {
  Chat chat;
  chat.messages.push_back(message("user", question_text(question) + ' '));
  return chat;
}

}  // namespace

std::vector<SquadQuestion> read_squad(const SquadOptions& options, DataFile* file) {
  const DatasetSplit split = with_limit(DatasetSplit::parse(options.split), options.limit_dataset_samples);
  const auto path = find_squad_file(options.dataset_name, split.name);
  FileSum sum;
  std::vector<SquadQuestion> questions = read_squad(path, &sum);
  if (file) *file = {path, sum};
  const auto [first, last] = split.rows(path.string(), static_cast<std::int64_t>(questions.size()));
  questions.erase(questions.begin() + last, questions.end());
  questions.erase(questions.begin(), questions.begin() + first);
  return questions;
}

std::string squad_prompt(const SquadQuestion& question, const std::optional<ChatTemplate>& chat_template) {
  if (!chat_template) return question_text(question);
  Chat chat = chat_of(question);
  chat.add_generation_prompt = true;
  return chat_template->render(chat).text;
}

TokenRow squad_row(const SquadQuestion& question, const Tokenizer& tokenizer, const SquadOptions& options) {
  if (options.chat_template) {
    Chat chat = chat_of(question);
    chat.messages.push_back(message("assistant", question.target()));
    return row_at(options.dataset_name, "",
                  [&] { return chat_row(question.id, chat, *options.chat_template, tokenizer); });
  }
  Completion completion{question.id, question_text(question) + ' ', question.target()};
  completion.context_begin = context_mark.size();
  completion.context_end = context_mark.size() + question.context.size();
  return completion_row("SQuAD data set", completion, tokenizer, options.answer_start, options.rows);
}

namespace {

std::string name_of(const SquadOptions& options) {
  return cat("SQuAD data set ", options.dataset_name, " (", options.split, ")");
}

void want_fitting_truncation(const SquadOptions& options) {
  require(!options.chat_template || options.rows.truncation != Truncation::context, "SQuAD data set ",
          options.dataset_name,
          ": truncation 'context' is for rows without a chat template; want left or right");
}

}  // namespace

RowSource squad_rows(const Tokenizer& tokenizer, const SquadOptions& options) {
  want_fitting_truncation(options);
  RowSource source;
  source.what = name_of(options);
  source.files = {find_squad_file(options.dataset_name, DatasetSplit::parse(options.split).name)};
  source.content = "questions";
  source.selection.split = options.split;
  source.selection.limit_dataset_samples = options.limit_dataset_samples;
  source.layout = options.rows;
  source.pad_id = padding_id(tokenizer, options.rows);
  const auto shared = std::make_shared<const SquadOptions>(options);
  source.read = [tokenizer, shared](const JsonView& row, std::int64_t) -> RowMaker {
    return [tokenizer, shared, question = read_squad_row(row)] {
      return squad_row(question, tokenizer, *shared);
    };
  };
  return source;
}

std::shared_ptr<const RowDataset> make_squad_dataset(const Tokenizer& tokenizer,
                                                     const SquadOptions& options) {
  want_fitting_truncation(options);
  DataFile file;
  const std::vector<SquadQuestion> questions = read_squad(options, &file);
  std::vector<TokenRow> rows = make_rows(std::ssize(questions), [&](std::int64_t i) {
    return squad_row(questions[static_cast<std::size_t>(i)], tokenizer, options);
  });
  return std::make_shared<RowDataset>(name_of(options), std::move(rows), options.rows,
                                      padding_id(tokenizer, options.rows), std::vector{file});
}

}  // namespace nemocube
