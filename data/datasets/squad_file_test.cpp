#include "data/datasets/squad_file.h"

#include <doctest/doctest.h>

#include "core/error.h"
#include "data/datasets/test_rows.h"
#include "data/json/test_dir.h"

using namespace nemocube;
using testing::spit;
using testing::TestDir;

namespace {

const std::string nested = R"({"version": "1.1", "data": [{"title": "T", "paragraphs": [
  {"context": "Café Öl costs 12 €.", "qas": [
    {"id": "a", "question": "How much?", "answers": [
      {"text": "12 €", "answer_start": 14}, {"text": "12", "answer_start": 14}]},
    {"answers": [{"answer_start": 5, "text": "Öl "}], "question": "What?", "id": "b"}]}]}]})";

std::string row(const std::string& id, const std::string& answers, const std::string& more = "") {
  return R"({"id": ")" + id + R"(", "context": "Café Öl", "question": "Q?", "answers": )" + answers + more +
         "}";
}

/// The error that reading `text` gives, with DIR for the directory.
std::string complaint(const std::string& text, const std::string& name = "f.json") {
  const TestDir dir;
  spit(dir / name, text);
  try {
    read_squad(dir / name);
  } catch (const Error& error) {
    std::string message = error.what();
    const std::string path = dir.path().string();
    for (std::size_t at; (at = message.find(path)) != std::string::npos;)
      message.replace(at, path.size(), "DIR");
    return message;
  }
  return "";
}

}  // namespace

TEST_CASE("squad file: nested form, places counted in code points") {
  const TestDir dir;
  spit(dir / "f.json", nested);
  const auto questions = read_squad(dir / "f.json");
  REQUIRE(questions.size() == 2);
  CHECK(questions[0].id == "a");
  CHECK(questions[0].question == "How much?");
  REQUIRE(questions[0].answers.size() == 2);
  CHECK(questions[0].answers[0].text == "12 €");
  CHECK(questions[0].answers[0].begin == 16);
  CHECK(questions[0].target() == "12 €");
  CHECK(questions[0].answer_texts() == std::vector<std::string>{"12 €", "12"});
  CHECK(questions[1].answers[0].begin == 6);
  CHECK(questions[1].target() == "Öl");
}

TEST_CASE("squad file: flat rows in three forms are the same") {
  const std::string one = row("a", R"({"text": ["Öl"], "answer_start": [5]})");
  const std::string two = row("b", R"({"text": [], "answer_start": []})");
  const std::string three =
      row("c", R"([{"text": "Café", "answer_start": 0}])", R"(, "is_impossible": false)");
  const std::string list = "[" + one + "," + two + "," + three + "]";
  const TestDir dir;
  spit(dir / "f.jsonl", one + "\n\n" + two + "\r\n" + three);
  spit(dir / "g.json", list);
  spit(dir / "h.json", "{\"version\": \"v2.0\", \"data\": " + list + "}");
  for (const char* name : {"f.jsonl", "g.json", "h.json"}) {
    CAPTURE(name);
    const auto questions = read_squad(dir / name);
    REQUIRE(questions.size() == 3);
    CHECK(questions[0].answers[0].begin == 6);
    CHECK(questions[1].answers.empty());
    CHECK(questions[1].target() == "");
    CHECK(questions[2].target() == "Café");
  }
}

TEST_CASE("squad file: version 2.0 questions") {
  const TestDir dir;
  spit(dir / "f.json", R"({"data": [{"paragraphs": [{"context": "c", "qas": [
    {"id": "a", "question": "q", "answers": [], "plausible_answers": [], "is_impossible": true}]}]}]})");
  CHECK(read_squad(dir / "f.json").at(0).answers.empty());
}

TEST_CASE("squad file: errors name file, question and fault") {
  CHECK(complaint("{").starts_with("DIR/f.json: "));
  CHECK(complaint("[1]") == "DIR/f.json: '[0]': want an object, got 1");
  CHECK(complaint(row("a", "[]") + "\n{\"id\": 1", "f.jsonl").starts_with("DIR/f.jsonl: line 2: "));
  CHECK(complaint("[]") == "DIR/f.json: holds no questions");
  CHECK(complaint(R"({"data": [{"paragraphs": [{"context": "c", "qas": [{}, {"id": 1}]}]}]})") ==
        "DIR/f.json: 'data[0].paragraphs[0].qas[0].id': want a value, got none");
  CHECK(complaint(R"({"data": [{"paragraphs": [{"context": "c", "qas": [{"id": "a"}]}]}]})") ==
        "DIR/f.json: 'data[0].paragraphs[0].qas[0] (question \"a\").question': want a value, got none");
  CHECK(complaint(R"({"data": [{"paragraphs": [{"qas": []}]}]})") ==
        "DIR/f.json: 'data[0].paragraphs[0].context': want a value, got none");
  CHECK(complaint("[" + row("a", R"({"text": ["Öl"], "answer_start": []})") + "]") ==
        "DIR/f.json: '[0]' (question \"a\"): 1 answer texts, 0 values of answer_start");
  CHECK(complaint("[" + row("a", R"([{"text": "Öl", "answer_start": "5"}])") + "]")
            .find("answer_start': want an integer") != std::string::npos);
  CHECK(complaint("[" + row("a", "[]", R"(, "is_impossible": false)") + "]") ==
        "DIR/f.json: '[0]' (question \"a\"): is_impossible is false, and there are 0 answers");
}

TEST_CASE(
    "squad file: answers that the context does not have where answer_start says are used, with one warning") {
  const auto warned = [](const std::string& answers) {
    const TestDir dir;
    spit(dir / "f.json", "[" + row("a", answers) + ", " + row("b", answers) + "]");
    const testing::Warnings warnings;
    const auto questions = read_squad(dir / "f.json");
    CHECK(questions.size() == 2);
    CHECK_FALSE(questions[1].answers.at(0).begin);
    CHECK(warnings.texts.size() <= 1);
    return warnings.texts.empty() ? "" : warnings.texts[0].substr((dir / "f.json").string().size());
  };
  const std::string rest =
      "; answers are used as they are, so answer_start has no effect, here and in other questions";
  CHECK(
      warned(R"([{"text": "Öl", "answer_start": 8}])") ==
      ": '[0]' (question \"a\"): want the answer 'Öl' at character 8 of the context, which has 7 characters" +
          rest);
  CHECK(warned(R"([{"text": "Öl", "answer_start": -1}])") ==
        ": '[0]' (question \"a\"): want the answer 'Öl' at character -1 of the context, which has 7 "
        "characters" +
            rest);
  CHECK(warned(R"([{"text": "Öl", "answer_start": 4}])") ==
        ": '[0]' (question \"a\"): want the answer 'Öl' at character 4 of the context, which has ' Ö' there" +
            rest);
  CHECK(
      warned(R"({"text": ["Ölig"], "answer_start": [5]})") ==
      ": '[0]' (question \"a\"): want the answer 'Ölig' at character 5 of the context, which has 'Öl' there" +
          rest);
  CHECK(warned(R"({"text": ["Öl"]})") == "");
  CHECK(warned(R"([{"text": "Öl", "answer_start": null}])") == "");
}

TEST_CASE("squad file: a row that lacks one key is refused by this key") {
  const auto refused = [](const std::string& row, const std::string& what) {
    CHECK(complaint("[" + row + "]")
              .starts_with("DIR/f.json: '[0]': want a row for data set class squad, got one " + what +
                           "\n  squad reads"));
    CHECK(complaint("[" + row + "]").find("_target_") == std::string::npos);
  };
  const std::string rest = R"("context": "c", "question": "q", "answers": {"text": [], "answer_start": []}})";
  refused("{" + rest, R"(without "id", with the keys "context", "question", "answers")");
  refused(R"({"id": null, )" + rest,
          R"(whose "id" is null, with the keys "id", "context", "question", "answers")");
  refused(R"({"id": 1, "context": "c", "question": "q"})",
          R"(without "answers", with the keys "id", "context", "question")");
  CHECK(complaint(R"([{"id": 3.5, )" + rest + "]")
            .starts_with("DIR/f.json: '[0].id': want a text or an integer, got 3.5"));
}

TEST_CASE("squad file: rows of another form are refused with the accepted ones and what reads them") {
  const auto refused = [](const std::string& text, const std::string& name, const std::string& start,
                          const std::string& advice) {
    const std::string message = complaint(text, name);
    CAPTURE(message);
    CHECK(message.starts_with(start));
    CHECK(message.find("\n  squad reads {\"id\": ..., \"context\": ..., \"question\": ...") != message.npos);
    CHECK(message.find(advice) != message.npos);
  };
  const std::string good = row("a", "[]") + "\n";
  refused(
      good + R"({"instruction": "i", "input": "", "output": "o"})", "f.jsonl",
      R"(DIR/f.jsonl: 'line 2': want a row for data set class squad, got one with the keys "instruction", )"
      R"("input", "output")",
      "this is Alpaca's form, which class column_mapped reads");
  refused(R"([{"messages": []}])", "f.json", "DIR/f.json: '[0]': want a row for data set class squad",
          "class messages reads such rows: set _target_: messages");
  refused(R"({"data": [{"question": "q", "answer": "a"}]})", "f.json", "DIR/f.json: 'data[0]': want a row",
          "column_mapping: {question: question, answer: answer}");
  refused(R"({"train": [1, 2]})", "f.json",
          "DIR/f.json: want a row for data set class squad, got one with the keys \"train\"\n",
          "SQuAD's files");
  refused(R"([{"context": "c"}])", "f.json", "DIR/f.json: '[0]': want a row",
          "got one without \"id\", with the keys \"context\"");
}

TEST_CASE("squad file: where a split is looked for") {
  const TestDir dir;
  for (const char* name : {"train-v1.1.json", "dev-v1.1.json", "other.json"}) spit(dir / name, nested);
  const std::string path = dir.path().string();
  CHECK(find_squad_file(path, "train") == dir / "train-v1.1.json");
  CHECK(find_squad_file(path, "validation") == dir / "dev-v1.1.json");
  CHECK(find_squad_file(path + "/other.json", "anything") == dir / "other.json");
  CHECK_THROWS_AS(find_squad_file(path, "test"), Error);
  CHECK_THROWS_WITH_AS(find_squad_file("./none.json", "train"),
                       "dataset_name: './none.json': no such file or directory", Error);
  CHECK_THROWS_WITH_AS(find_squad_file("./none.json", "train", "r.yaml:3: dataset.path"),
                       "r.yaml:3: dataset.path: './none.json': no such file or directory", Error);
  for (const auto& [name, file] :
       {std::pair{"rajpurkar/squad", "train-v1.1.json"}, {"squad_v2", "dev-v2.0.json"}}) {
    try {
      find_squad_file(name, "train");
      FAIL("found");
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find(file) != std::string::npos);
    }
  }
}
