#include "data/datasets/streamed_rows.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "data/datasets/column_mapped.h"
#include "data/datasets/hellaswag.h"
#include "data/datasets/messages.h"
#include "data/datasets/squad.h"
#include "data/datasets/test_rows.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using testing::message_of;
using testing::sample_tokenizer;
using testing::spit;
using testing::TestDir;

namespace {

void check_same(const Dataset& streamed, const Dataset& in_memory) {
  REQUIRE(streamed.size() == in_memory.size());
  CHECK(streamed.pad_id() == in_memory.pad_id());
  for (std::int64_t i = 0; i < streamed.size(); ++i) {
    const Sample got = streamed.sample(i), want = in_memory.sample(i);
    CAPTURE(i);
    REQUIRE(got.id == want.id);
    REQUIRE(got.input_ids == want.input_ids);
    REQUIRE(got.labels == want.labels);
    REQUIRE(got.lengths == want.lengths);
    REQUIRE(streamed.content_length(i) == in_memory.content_length(i));
  }
}

void check_same(const RowSource& source) {
  const std::string error = message_of([&] { rows_in_memory(source); });
  CHECK(message_of([&] { StreamedRows{source}; }) == error);
  if (error == "no error") check_same(StreamedRows(source), *rows_in_memory(source));
}

std::string talk(int i, const std::string& answer) {
  return cat(R"({"messages": [{"role": "user", "content": "What is )", i,
             R"(?"}, {"role": "assistant", "content": ")", answer, "\"}]}");
}

/// Many lines of many lengths, some blank, some without an answer; the last has no line feed.
std::string talks(int count) {
  std::string lines = " \n\n";
  for (int i = 0; i < count; ++i) {
    lines += i % 7 == 3 ? cat(R"({"messages": [{"role": "user", "content": "no answer )", i, "\"}]}")
                        : talk(i, std::string(static_cast<std::size_t>(i * 37 % 101), 'x') + " yes");
    lines += i + 1 == count ? "" : i % 50 == 49 ? "\r\n \t\n\n" : "\n";
  }
  return lines;
}

}  // namespace

TEST_CASE("line index: every line that is not blank, by its number") {
  const TestDir dir;
  std::vector<std::string> lines;
  std::vector<std::int64_t> numbers;
  std::string text;
  for (int i = 0; i < 1500; ++i) {
    const bool blank = i % 256 == 0 || i == 700 || i == 701;
    const std::string line =
        blank ? " \t" : std::string(static_cast<std::size_t>(i % 300), 'a') + std::to_string(i);
    if (!blank) {
      lines.push_back(line);
      numbers.push_back(i + 1);
    }
    text += line + "\n";
  }
  const auto check = [&](const std::string& content) {
    spit(dir / "f", content);
    const LineIndex index(dir / "f", 1000);
    REQUIRE(index.size() == std::ssize(lines));
    CHECK(index.bytes() == std::ssize(content));
    for (std::size_t i = 0; i < lines.size(); ++i) {
      CAPTURE(i);
      REQUIRE(index.text(static_cast<std::int64_t>(i)) == lines[i]);
      REQUIRE(index.number(static_cast<std::int64_t>(i)) == numbers[i]);
    }
  };
  check(text);
  check(text.substr(0, text.size() - 1));  // no line feed at the end
  check(text + " \n\n ");
  spit(dir / "f", "");
  CHECK(LineIndex(dir / "f", 1000).size() == 0);
  spit(dir / "f", text);
  CHECK_THROWS_WITH_AS(LineIndex(dir / "f", 100), doctest::Contains("line 100: want at most 100 bytes"),
                       Error);
  const LineIndex index(dir / "f", 1000);
  std::filesystem::resize_file(dir / "f", 5000);
  CHECK_THROWS_WITH_AS(index.text(1000), doctest::Contains("bytes when it was opened"), Error);
}

TEST_CASE("streamed rows: the rows of conversations in memory") {
  const TestDir dir;
  const std::filesystem::path path = dir / "f.jsonl";
  spit(path, talks(600));
  MessagesOptions options{.files = {path}};
  const StreamedRows all(messages_rows(sample_tokenizer(), options));
  CHECK(all.size() == 600 - 86);
  CHECK(all.sample(3).id == "row 4");
  CHECK(all.made_on_demand());
  check_same(messages_rows(sample_tokenizer(), options));
  options.rows = {.seq_length = 40, .padding = Padding::max_length, .truncation = Truncation::right};
  check_same(messages_rows(sample_tokenizer(), options));
  options.rows.truncation = Truncation::left;
  options.rows.keep_last = true;
  options.selection.shuffle_seed = 3;
  options.selection.split = "train[10%:400]";
  check_same(messages_rows(sample_tokenizer(), options));
  const ChatTemplate plain("t", "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}");
  options.chat_templates = ChatTemplates{plain, plain};
  check_same(messages_rows(sample_tokenizer(), options));
}

TEST_CASE("streamed rows: of several files, one after another") {
  const TestDir dir;
  MessagesOptions options;
  for (const int rows : {300, 1, 17}) {
    options.files.push_back(dir / cat(rows, ".jsonl"));
    spit(options.files.back(), talks(rows));
  }
  options.files.push_back(dir / "empty.jsonl");
  spit(options.files.back(), "\n");
  check_same(messages_rows(sample_tokenizer(), options));
  options.selection.shuffle_seed = 1;
  check_same(messages_rows(sample_tokenizer(), options));
  spit(options.files[2], talk(1, "a") + "\n{}");
  check_same(messages_rows(sample_tokenizer(), options));
  CHECK_THROWS_WITH_AS(StreamedRows(messages_rows(sample_tokenizer(), options)),
                       doctest::Contains("17.jsonl: 'line 2': want a row"), Error);
  options.skip_invalid_samples = true;
  check_same(messages_rows(sample_tokenizer(), options));
  spit(options.files[2], "{}");
  options.files = {options.files[2], options.files[3]};
  CHECK(message_of([&] {
          StreamedRows(messages_rows(sample_tokenizer(), options));
        }).find("17.jsonl and 1 more: holds no conversations; skipped 1 of 1 rows") != std::string::npos);
}

TEST_CASE("streamed rows: of the other classes") {
  const TestDir dir;
  std::string questions, columns, endings;
  for (int i = 0; i < 20; ++i) {
    questions +=
        cat(R"({"id": "q)", i, R"(", "context": "It is )", i, R"( now.", "question": "What?", "answers": )",
            R"({"text": ["is"], "answer_start": [3]}})", "\n");
    columns += cat(R"({"prompt": "Say )", i, R"(", "completion": "I say )", std::string(i % 5, 'y'), "\"}\n");
    endings += cat(R"({"ctx": ")", std::string(i + 1, 'a'), R"(", "endings": ["x", "y )", i,
                   R"("], "label": )", i % 2, "}\n");
  }
  spit(dir / "q.jsonl", questions);
  spit(dir / "c.ndjson", columns);
  spit(dir / "h.jsonl", endings);
  SquadOptions squad{.dataset_name = (dir / "q.jsonl").string(), .split = "train[5:]"};
  check_same(StreamedRows(squad_rows(sample_tokenizer(), squad)),
             *make_squad_dataset(sample_tokenizer(), squad));
  squad.limit_dataset_samples = 7;
  squad.split = "train";
  squad.rows = {.seq_length = 12, .truncation = Truncation::context};
  check_same(StreamedRows(squad_rows(sample_tokenizer(), squad)),
             *make_squad_dataset(sample_tokenizer(), squad));
  const ColumnMapping mapping{.context = std::nullopt, .question = "prompt", .answer = "completion"};
  check_same(column_mapped_rows(sample_tokenizer(), {.files = {dir / "c.ndjson"}, .mapping = mapping}));
  HellaSwagOptions hellaswag{.files = {dir / "h.jsonl"}};
  check_same(hellaswag_rows(sample_tokenizer(), hellaswag));
  spit(dir / "h.jsonl",
       endings + R"({"ctx": ")" + std::string(99, 'b') + R"(", "endings": [""], "label": 0})");
  hellaswag.separator = "";
  hellaswag.append_eos = false;
  check_same(hellaswag_rows(sample_tokenizer(), hellaswag));  // the long row has no label
  hellaswag.pad_to_max_length = false;
  check_same(hellaswag_rows(sample_tokenizer(), hellaswag));
}

TEST_CASE("streamed rows: errors are those of rows in memory") {
  const TestDir dir;
  const std::filesystem::path path = dir / "f.jsonl";
  MessagesOptions options{.files = {path}};
  const auto check = [&](const std::string& text, const std::string& want) {
    CAPTURE(want);
    spit(path, text);
    const RowSource source = messages_rows(sample_tokenizer(), options);
    CHECK(message_of([&] { StreamedRows{source}; }).find(want) != std::string::npos);
    check_same(source);
  };
  check("\n" + talk(1, "a") + "\n\n{\"messages\": 7}\n", "'line 4.messages': want a list");
  check(talk(1, "a") + "\n{\"messages\"\n" + talk(1, "a"), "line 2: not valid JSON");
  check("\n", "holds no conversations");
  check(R"({"messages": [{"role": "user", "content": "q"}]})", "none of 1 row has a label");
  options.rows = {.seq_length = 2, .padding = Padding::max_length};
  check(talk(1, "a"), "set truncation: true");
  options.rows = {};
  options.skip_invalid_samples = true;
  check("[]\n" + talk(1, "a") + "\nno\n" + talk(2, "b"), "no error");
  check("[]\nno\n", "holds no conversations; skipped 2 of 2 rows; the first: ");
  options.selection.split = "train[9:]";
  check(talk(1, "a"), "split 'train[9:]' selects no row of 1");
}

TEST_CASE("streamed rows: files that cannot be streamed, or that change") {
  const TestDir dir;
  spit(dir / "f.json", cat("[", talk(1, "a"), "]"));
  MessagesOptions options{.files = {dir / "f.json"}};
  CHECK_THROWS_WITH_AS(StreamedRows(messages_rows(sample_tokenizer(), options)),
                       doctest::Contains("f.json: want JSON lines"), Error);
  spit(dir / "q.jsonl", R"({"paragraphs": []})");
  CHECK_THROWS_WITH_AS(
      StreamedRows(squad_rows(sample_tokenizer(), {.dataset_name = (dir / "q.jsonl").string()})),
      doctest::Contains("want a row for data set class squad"), Error);
  const std::filesystem::path path = dir / "f.jsonl";
  options.files = {path};
  spit(path, talk(1, "aaaa") + "\n" + talk(2, "bbbb"));
  const StreamedRows rows(messages_rows(sample_tokenizer(), options));
  CHECK(rows.sample(1).id == "row 1");
  spit(path, talk(1, "aaaa") + "\n" + talk(2, "bbbc"));
  CHECK_THROWS_WITH_AS(rows.sample(1), doctest::Contains("line 2 has changed since the run began"), Error);
  spit(path, talk(1, "aaaa"));
  CHECK_THROWS_WITH_AS(rows.sample(1), doctest::Contains("bytes when it was opened"), Error);
}

TEST_CASE("streamed rows: skip_invalid leaves out faulty rows, not lines that cannot be read") {
  const TestDir dir;
  const std::filesystem::path path = dir / "f.jsonl";
  std::string text;
  for (int i = 0; i < 5000; ++i) text += talk(i, "yes") + "\n";
  spit(path, text);
  std::int64_t checked = 0;
  const StreamedRows::Options options{.on_rows = [&](std::int64_t done, std::int64_t) {
    if (checked == 0) std::filesystem::resize_file(path, text.size() / 100 * 99);
    checked = std::max(checked, done);
  }};
  const RowSource source = messages_rows(sample_tokenizer(), {.files = {path}, .skip_invalid_samples = true});
  CHECK_THROWS_WITH_AS(StreamedRows(source, options), doctest::Contains("bytes when it was opened"), Error);
  CHECK(checked == 4096);  // the rows that were there when the first report came
}
