#include "data/datasets/row_forms.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace nemocube {
namespace {
/// Rows that have all of `keys` are in a known form; `advice` says how to train on them.
struct KnownForm {
  std::vector<std::string_view> keys;
  std::string advice;
};

std::string mapped(std::string_view question, std::string_view answer) {
  return cat(
      "class column_mapped reads such rows: set _target_: column_mapped and column_mapping: {question: ",
      question, ", answer: ", answer, "}");
}

const std::vector<KnownForm>& known_forms() {
  static const std::vector<KnownForm> forms{
      {{"messages"}, "class messages reads such rows: set _target_: messages"},
      {{"conversations"}, "class messages reads such rows: set _target_: messages"},
      {{"context", "question", "answers"}, "class squad reads such rows: set _target_: squad"},
      {{"paragraphs"}, "class squad reads such rows: set _target_: squad"},
      {{"chosen", "rejected"}, "these are preference pairs, which no data set class of this build reads"},
      {{"ctx", "endings", "label"}, "class hellaswag reads such rows: set _target_: hellaswag"},
      {{"instruction", "input", "output"},
       "this is Alpaca's form, which class column_mapped reads: set _target_: column_mapped and "
       "column_mapping: {context: instruction, question: input, answer: output}"},
      {{"instruction", "output"}, mapped("instruction", "output")},
      {{"prompt", "completion"}, mapped("prompt", "completion")},
      {{"prompt", "response"}, mapped("prompt", "response")},
      {{"question", "answer"}, mapped("question", "answer")},
      {{"input", "output"}, mapped("input", "output")},
      {{"input_ids", "labels"},
       "for rows that are tokenised already, class tokens reads a safetensors file with the tensors "
       "input_ids "
       "and labels"},
      {{"text"}, "no data set class of this build reads plain text"},
  };
  return forms;
}
}  // namespace

std::string list_keys(const Json& object) {
  std::string list;
  std::size_t count = 0;
  for (const auto& item : object.items()) {
    if (++count > 10) return cat(list, " and ", object.size() - 10, " more");
    list += (count > 1 ? ", " : "") + brief(Json(item.key()));
  }
  return list;
}

void refuse_row(const JsonView& row, std::string_view dataset_class, std::string_view accepted_form,
                const std::string& missing) {
  if (!row.value().is_object()) row.refuse("an object");
  const auto& forms = known_forms();
  const auto known = std::ranges::find_if(forms, [&](const KnownForm& form) {
    return std::ranges::all_of(form.keys, [&](std::string_view key) { return row.value().contains(key); });
  });
  std::string advice = known == forms.end() ? "" : known->advice;
  const std::string this_class = cat("set _target_: ", dataset_class);
  const bool of_other_class = !advice.empty() && advice.find(this_class) == std::string::npos;
  if (advice.ends_with(this_class)) advice.clear();
  std::string text = cat(row.file(), ": ", row.place().empty() ? "" : cat("'", row.place(), "': "),
                         "want a row for data set class ", dataset_class, ", got one ");
  if (!missing.empty() && !of_other_class)
    text += row.has_null(missing) ? cat("whose ", brief(Json(missing)), " is null, ")
                                  : cat("without ", brief(Json(missing)), ", ");
  text += cat("with ", row.value().empty() ? "no keys" : "the keys ", list_keys(row.value()), "\n  ",
              dataset_class, " reads ", accepted_form);
  if (!advice.empty()) text += cat("\n  ", advice);
  throw Error(text);
}

void want_keys(const JsonView& row, const std::vector<std::string>& keys, std::string_view dataset_class,
               std::string_view accepted_form) {
  if (!row.value().is_object()) row.refuse("an object");
  const auto missing = std::ranges::find_if(keys, [&](const std::string& key) { return !row.has(key); });
  if (missing == keys.end()) return;
  const bool of_this_form =
      std::ranges::any_of(keys, [&](const std::string& key) { return row.value().contains(key); });
  refuse_row(row, dataset_class, accepted_form, of_this_form ? *missing : "");
}

void want_conversation(const JsonView& row) {
  if (row.value().is_object() && row.has("conversations")) return;
  want_keys(row, {"messages"}, "messages", messages_form);
}

}  // namespace nemocube
