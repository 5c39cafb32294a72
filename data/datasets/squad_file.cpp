#include "data/datasets/squad_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/quote.h"
#include "core/warn_once.h"
#include "data/datasets/json_rows.h"
#include "data/datasets/parquet_note.h"
#include "data/datasets/row_forms.h"
#include "data/datasets/text.h"

namespace nemocube {

namespace {

/// A paragraph's text with the offsets of its code points, computed once.
struct SquadContext {
  explicit SquadContext(std::string_view text_) : text(text_), offsets(character_offsets(text_)) {}
  std::string_view text;
  std::vector<std::size_t> offsets;
};

/// Where the answer is in the context, if it is at character `start`.
std::optional<std::size_t> located(const SquadContext& context, std::string_view text, std::int64_t start) {
  if (start < 0 || start >= std::ssize(context.offsets)) return std::nullopt;
  const std::size_t begin = context.offsets[static_cast<std::size_t>(start)];
  return context.text.compare(begin, text.size(), text) == 0 ? std::optional(begin) : std::nullopt;
}

std::string text_at(const SquadContext& context, std::string_view text, std::int64_t start) {
  const auto last = std::ssize(context.offsets) - 1;
  if (start < 0 || start > last) return cat("has ", last, " characters");
  const auto at = [&](std::int64_t character) {
    return context.offsets[static_cast<std::size_t>(std::min(character, last))];
  };
  const std::int64_t length = std::ssize(character_offsets(text)) - 1;
  return cat("has ", quote(context.text.substr(at(start), at(start + length) - at(start))), " there");
}

/// `start` may be absent.
SquadAnswer read_answer(const SquadContext& context, const std::string& file, const std::string& where,
                        std::string_view text, const std::optional<JsonView>& start) {
  if (!start) return {std::string(text), std::nullopt};
  const auto begin = located(context, text, start->integer());
  if (!begin)
    warn_once(file + " has answers elsewhere", where, ": want the answer ", quote(text), " at character ",
              start->integer(), " of the context, which ", text_at(context, text, start->integer()),
              "; answers are used as they are, so answer_start has no effect, here and in other questions");
  return {std::string(text), begin};
}

std::vector<SquadAnswer> read_answers(const SquadContext& context, const std::string& where,
                                      const JsonView& answers) {
  std::vector<SquadAnswer> out;
  if (answers.value().is_array()) {
    for (const JsonView& answer : answers.elements())
      out.push_back(read_answer(context, answers.file(), where, answer.at("text").string(),
                                answer.find("answer_start")));
    return out;
  }
  const auto texts = answers.at("text").elements();
  const auto given = answers.find("answer_start");
  const auto starts = given ? given->elements() : std::vector<JsonView>();
  require(!given || texts.size() == starts.size(), where, ": ", texts.size(), " answer texts, ",
          starts.size(), " values of answer_start");
  for (std::size_t i = 0; i < texts.size(); ++i)
    out.push_back(read_answer(context, answers.file(), where, texts[i].string(),
                              given ? std::optional(starts[i]) : std::nullopt));
  return out;
}

SquadQuestion read_question(const SquadContext& context, const JsonView& row) {
  row.at("id");
  SquadQuestion question;
  question.id = row_id(row, "");
  question.context = context.text;
  const std::string id = brief(Json(question.id));
  const std::string where = cat(row.file(), ": '", row.place(), "' (question ", id, ")");
  const JsonView place(row.value(), row.file(), cat(row.place(), " (question ", id, ")"));
  question.question = place.at("question").string();
  question.answers = read_answers(context, where, place.at("answers"));
  if (const auto impossible = place.find("is_impossible"))
    require(impossible->boolean() == question.answers.empty(), where, ": is_impossible is ",
            impossible->boolean() ? "true" : "false", ", and there are ", question.answers.size(),
            " answers");
  return question;
}

}  // namespace

std::string SquadQuestion::target() const {
  return answers.empty() ? std::string() : std::string(strip(answers.front().text));
}

std::vector<std::string> SquadQuestion::answer_texts() const {
  std::vector<std::string> out;
  for (const SquadAnswer& answer : answers) out.push_back(answer.text);
  return out;
}

SquadQuestion read_squad_row(const JsonView& row) {
  want_keys(row, {"id", "context", "question", "answers"}, "squad", squad_form);
  return read_question(SquadContext(row.at("context").string()), row);
}

std::vector<SquadQuestion> read_squad(const std::filesystem::path& path, FileSum* sum) {
  std::vector<SquadQuestion> out;
  const FileSum read = for_each_row(path, [&](const JsonView& row) {
    const auto paragraphs = row.value().is_object() ? row.find("paragraphs") : std::nullopt;
    if (!paragraphs) {
      out.push_back(read_squad_row(row));
      return;
    }
    for (const JsonView& paragraph : paragraphs->elements()) {
      const SquadContext context(paragraph.at("context").string());
      for (const JsonView& question : paragraph.at("qas").elements())
        out.push_back(read_question(context, question));
    }
  });
  require(!out.empty(), path.string(), ": holds no questions");
  if (sum) *sum = read;
  return out;
}

std::filesystem::path find_squad_file(const std::string& name, std::string_view split_name,
                                      std::string_view where) {
  namespace fs = std::filesystem;
  fs::path path = name;
  if (fs::is_regular_file(path)) return path;
  std::vector<std::string> stems{std::string(split_name)};
  if (split_name == "validation") stems.push_back("dev");
  std::vector<std::string> files;
  for (const std::string& stem : stems)
    for (const char* ending : {".json", ".jsonl", ".ndjson", "-v1.1.json", "-v2.0.json"})
      files.push_back(stem + ending);
  if (fs::is_directory(path)) {
    for (const std::string& file : files)
      if (fs::is_regular_file(path / file)) return path / file;
    std::string all;
    for (const std::string& file : files) all += (all.empty() ? "" : ", ") + file;
    fail(where, ": the directory ", quote(name), " has no file for split '", split_name, "'; looked for ",
         all, parquet_note(path));
  }
  if (fs::exists(path)) fail(where, ": ", quote(name), ": want a regular file or a directory");
  const bool hub_like = std::ranges::count(name, '/') <= 1 && !name.starts_with('/') &&
                        !name.starts_with('.') && path.extension() != ".json" &&
                        path.extension() != ".jsonl" && path.extension() != ".ndjson";
  if (!hub_like) fail(where, ": ", quote(name), ": no such file or directory");
  const bool version_2 = name.find("v2") != std::string::npos;
  const char* version = version_2 ? "v2.0" : "v1.1";
  fail(where, ": ", quote(name),
       ": no such file or directory, and nothing is downloaded. For SQuAD, download train-", version,
       ".json and dev-", version,
       ".json from https://rajpurkar.github.io/SQuAD-explorer/dataset/, put them into one directory and name "
       "that directory here");
}

}  // namespace nemocube
