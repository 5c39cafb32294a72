#include "data/datasets/column_mapped.h"

#include <nlohmann/json.hpp>

#include "data/datasets/chat_row.h"
#include "data/datasets/json_rows.h"
#include "data/datasets/row_forms.h"

namespace nemocube {

namespace {

std::optional<std::string> column(const JsonView& row, const std::optional<std::string>& name) {
  if (!name) return std::nullopt;
  const auto found = row.find(*name);
  return found ? std::optional(found->string()) : std::nullopt;
}

/// The columns of the recipe, for messages.
std::string form_of(const ColumnMapping& mapping) {
  std::string form;
  const auto add = [&](const char* what, const std::string& name) {
    form += cat(form.empty() ? "" : ", ", brief(Json(name)), ": ", what);
  };
  if (mapping.context) add("context", *mapping.context);
  if (mapping.question) add("question", *mapping.question);
  add("answer", mapping.answer);
  return cat("{", form, "}, the columns of column_mapping");
}

MappedRow read_mapped_row(const JsonView& row, std::int64_t number, const ColumnMapping& mapping) {
  const bool has_prompt = row.value().is_object() && ((mapping.context && row.has(*mapping.context)) ||
                                                      (mapping.question && row.has(*mapping.question)));
  if (!has_prompt || !row.has(mapping.answer)) refuse_row(row, "column_mapped", form_of(mapping));
  return {row_id(row, cat("row ", number)), column(row, mapping.context), column(row, mapping.question),
          row.at(mapping.answer).string(), row.place()};
}

Chat chat_of_columns(const MappedRow& row) {
  Chat chat;
  const auto add = [&](const char* role, const std::string& content) {
    chat.messages.push_back({{"role", role}, {"content", content}});
  };
  add("system", row.context.value_or(""));
  add("user", row.question.value_or(""));
  add("assistant", row.answer);
  return chat;
}

}  // namespace

std::vector<MappedRow> read_mapped_rows(const std::filesystem::path& path, const ColumnMapping& mapping) {
  std::vector<MappedRow> out;
  for_each_valid_row(path, "rows", false, [&](const JsonView& row, std::int64_t number) {
    out.push_back(read_mapped_row(row, number, mapping));
  });
  return out;
}

TokenRow column_mapped_row(const MappedRow& row, const Tokenizer& tokenizer,
                           const ColumnMappedOptions& options) {
  if (options.chat_template) {
    ChatRowOptions chat;
    chat.answer_only = options.answer_only_loss_mask;
    return row_at(options.path, row.place, [&] {
      return chat_row(row.id, chat_of_columns(row), *options.chat_template, tokenizer, chat);
    });
  }
  Completion completion{row.id, "", row.answer};
  if (row.context) completion.prompt += *row.context + ' ';
  completion.context_end = row.context ? row.context->size() : 0;
  if (row.question) completion.prompt += *row.question + ' ';
  return completion_row("column_mapped data set", completion, tokenizer, options.answer_start, options.rows,
                        options.answer_only_loss_mask);
}

std::shared_ptr<const RowDataset> make_column_mapped_dataset(const Tokenizer& tokenizer,
                                                             const ColumnMappedOptions& options) {
  const std::string what = cat("column_mapped data set ", options.path);
  require(!options.chat_template || options.rows.truncation != Truncation::context, what,
          ": truncation 'context' is for rows without a chat template; want left or right");
  const std::vector<MappedRow> mapped = read_mapped_rows(options.path, options.mapping);
  const auto chosen = selected_rows(what, options.selection, std::ssize(mapped));
  std::vector<TokenRow> rows = make_rows(std::ssize(chosen), [&](std::int64_t i) {
    const MappedRow& row = mapped[static_cast<std::size_t>(chosen[static_cast<std::size_t>(i)])];
    return column_mapped_row(row, tokenizer, options);
  });
  return std::make_shared<RowDataset>(what, std::move(rows), options.rows,
                                      padding_id(tokenizer, options.rows));
}

}  // namespace nemocube
