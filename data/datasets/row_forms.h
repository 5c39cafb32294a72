#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "data/json/json.h"

namespace nemocube {

/// The accepted forms of question-answering rows, of conversation rows and of HellaSwag, for error messages.
inline constexpr std::string_view squad_form =
    R"({"id": ..., "context": ..., "question": ..., "answers": {"text": [...], "answer_start": [...]}}, )"
    R"(or SQuAD's files {"data": [{"paragraphs": [{"context": ..., "qas": [...]}]}]})";
inline constexpr std::string_view messages_form =
    R"({"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}]}, )"
    R"(or {"conversations": [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}]})";
inline constexpr std::string_view hellaswag_form =
    R"({"ctx": ..., "endings": [..., ..., ..., ...], "label": 0 to 3}, HellaSwag's rows of train and validation)";

/// Throws Error naming file and row, the form that data sets of class `dataset_class` accept, the keys that
/// the row has, and the class or the conversion that reads such a row:
///     data.jsonl: 'line 1': want a row for data set class squad, got one with the keys "prompt",
///     "completion"
///       squad reads ...
/// `missing`: the key that the row lacks. The message names this key, unless the row fits another class.
[[noreturn]] void refuse_row(const JsonView& row, std::string_view dataset_class,
                             std::string_view accepted_form, const std::string& missing = "");

/// Throws the Error of refuse_row() when the row lacks one of `keys` or its value is null. The message names
/// the first missing key where the row has another one of `keys`.
void want_keys(const JsonView& row, const std::vector<std::string>& keys, std::string_view dataset_class,
               std::string_view accepted_form);

/// Throws the Error of refuse_row() for a row with neither `messages` nor `conversations`.
void want_conversation(const JsonView& row);

/// The first keys of an object, each in quotes: "prompt", "completion".
std::string list_keys(const Json& object);

}  // namespace nemocube
