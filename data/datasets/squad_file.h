#pragma once
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

/// Question-answering files in the forms of SQuAD (Rajpurkar et al., "SQuAD: 100,000+ questions for machine
/// comprehension of text", 2016, and version 2.0, 2018).
namespace nemocube {

struct SquadAnswer {
  std::string text;
  std::size_t begin = 0;  ///< bytes into the context; the file counts code points
};

struct SquadQuestion {
  std::string id;
  std::string context;
  std::string question;
  std::vector<SquadAnswer> answers;  ///< empty: the question is impossible to answer (version 2.0)

  /// What a model is trained to say: the first answer without white space around it, "" when there is none.
  std::string target() const;
  std::vector<std::string> answer_texts() const;
};

/// Reads, in file order, the nested form ({"data": [{"paragraphs": [...]}]}), flat rows (a list or {"data":
/// [...]}, answers as {"text": [...], "answer_start": [...]} or as a list of objects) and flat rows one to a
/// line (*.jsonl, *.ndjson). A question may lack answers when its list is empty and `is_impossible` does not
/// say otherwise. Throws Error naming file, question and fault, also where an answer does not stand in the
/// context at its answer_start.
std::vector<SquadQuestion> read_squad(const std::filesystem::path& path);

/// The file that `dataset_name` (a file, or a directory with train.json, train-v1.1.json, dev-v1.1.json,
/// validation.jsonl and alike) holds for a split. Throws Error that says what to download where the name
/// looks like one of a hub.
std::filesystem::path find_squad_file(const std::string& dataset_name, std::string_view split_name);

}  // namespace nemocube
