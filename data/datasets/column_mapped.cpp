#include "data/datasets/column_mapped.h"

#include <nlohmann/json.hpp>

#include "data/chat/chat.h"
#include "data/datasets/chat_row.h"
#include "data/datasets/json_rows.h"
#include "data/datasets/row_forms.h"

namespace nemocube {

namespace {

std::optional<std::string> column(const JsonView& row, const std::optional<std::string>& name) {
  if (!name) return std::nullopt;
  const auto found = row.find(*name);
  return found ? std::optional<std::string>(found->string()) : std::nullopt;
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

MappedRow read_mapped_row(const JsonView& row, std::int64_t number, const ColumnMapping& mapping) {
  const bool has_prompt = row.value().is_object() && ((mapping.context && row.has(*mapping.context)) ||
                                                      (mapping.question && row.has(*mapping.question)));
  if (!row.value().is_object()) row.refuse("an object");
  const bool has_answer = row.has(mapping.answer);
  if (!has_prompt || !has_answer)
    refuse_row(row, "column_mapped", form_of(mapping),
               has_prompt   ? mapping.answer
               : has_answer ? mapping.question.value_or(mapping.context.value_or(""))
                            : "");
  return {row_id(row, cat("row ", number)),
          column(row, mapping.context),
          column(row, mapping.question),
          std::string(row.at(mapping.answer).string()),
          row.file(),
          row.place()};
}

TokenRow column_mapped_row(const MappedRow& row, const Tokenizer& tokenizer,
                           const ColumnMappedOptions& options) {
  if (options.chat_template) {
    ChatRowOptions chat;
    chat.answer_only = options.answer_only_loss_mask;
    return row_at(row.file, row.place, [&] {
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

RowSource column_mapped_rows(const Tokenizer& tokenizer, const ColumnMappedOptions& options) {
  RowSource source;
  source.what = cat("column_mapped data set ", names_of(options.files));
  require(!options.chat_template || options.rows.truncation != Truncation::context, source.what,
          ": truncation 'context' is for rows without a chat template; want left or right");
  source.files = options.files;
  source.selection = options.selection;
  source.layout = options.rows;
  source.pad_id = padding_id(tokenizer, options.rows);
  const auto shared = std::make_shared<const ColumnMappedOptions>(options);
  source.read = [tokenizer, shared](const JsonView& row, std::int64_t number) -> RowMaker {
    return [tokenizer, shared, mapped = read_mapped_row(row, number, shared->mapping)] {
      return column_mapped_row(mapped, tokenizer, *shared);
    };
  };
  return source;
}

}  // namespace nemocube
