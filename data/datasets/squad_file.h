#pragma once
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/files/file_sum.h"
#include "data/json/json.h"

/// Question-answering files in the forms of SQuAD (Rajpurkar et al., "SQuAD: 100,000+ questions for machine
/// comprehension of text", 2016, and version 2.0, 2018).
namespace nemocube {

struct SquadAnswer {
  std::string text;
  /// Byte offset in the context (the file counts code points); nothing where the
  /// context has no such answer at the offset.
  std::optional<std::size_t> begin{};
};

struct SquadQuestion {
  std::string id;
  std::string context;
  std::string question;
  std::vector<SquadAnswer> answers;  ///< empty: the question is impossible to answer (version 2.0)

  /// The training target: the first answer without white space around it, "" when there is none.
  std::string target() const;
  std::vector<std::string> answer_texts() const;
};

/// The questions of a file, in file order. Accepted forms:
///   - SQuAD's nested form, {"data": [{"paragraphs": [...]}]}
///   - flat rows: a list, {"data": [...]}, or one row per line (*.jsonl, *.ndjson); `answers` of a row is
///     {"text": [...], "answer_start": [...]} or a list of objects
/// A question may have an empty list of answers. `is_impossible`, where present, must be true exactly then.
/// `answer_start` may be absent. One warning for each file names the first answer that the context does not
/// have at its answer_start. Throws Error naming file, question and fault. `sum`: gets the sum of the file.
std::vector<SquadQuestion> read_squad(const std::filesystem::path& path, FileSum* sum = nullptr);

/// The question of a flat row. Throws Error as read_squad() does, also for an article of SQuAD's nested form,
/// which holds several.
SquadQuestion read_squad_row(const JsonView& row);

/// The file with the rows of a split. `name` is this file, or a directory with files such as train.json,
/// train-v1.1.json, dev-v1.1.json, validation.jsonl. Throws Error without such a file; if `name` looks like a
/// name on the Hugging Face hub, the message says what to download. Messages begin with `where`, such as the
/// key that gives the name.
std::filesystem::path find_squad_file(const std::string& name, std::string_view split_name,
                                      std::string_view where = "dataset_name");

}  // namespace nemocube
