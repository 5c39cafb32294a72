#include "data/datasets/column_mapped.h"

#include <doctest/doctest.h>

#include "data/datasets/describe.h"
#include "data/datasets/test_rows.h"

using namespace nemocube;
using testing::complaint_about;
using testing::sample_tokenizer;
using testing::spit;
using testing::TestDir;

namespace {

std::string shown(const MappedRow& row, const ColumnMappedOptions& options) {
  TokenRow made = column_mapped_row(row, sample_tokenizer(), options);
  truncate_row(made, options.rows.truncation, options.rows.seq_length);
  return describe_supervision(finish_row(made, {}, 0), sample_tokenizer());
}

std::vector<MappedRow> mapped_rows(const std::filesystem::path& path, const ColumnMapping& mapping) {
  return testing::rows_of_file(
      path, [&](const JsonView& row, std::int64_t number) { return read_mapped_row(row, number, mapping); });
}

std::string complaint(const std::string& text, const ColumnMapping& mapping) {
  return complaint_about(text, [&](const std::filesystem::path& path) { mapped_rows(path, mapping); });
}

const MappedRow sum{"r", "Add the numbers.", "4 and 5", "nine"};

}  // namespace

TEST_CASE("column_mapped: context, question and answer") {
  CHECK(shown(sum, {}) == "Add the numbers. 4 and 5⟦ nine</s>⟧");
  CHECK(shown({"r", std::nullopt, "4 and 5", "nine"}, {}) == "4 and 5⟦ nine</s>⟧");
  CHECK(shown({"r", "Add", std::nullopt, "nine"}, {}) == "Add⟦ nine</s>⟧");
  CHECK(shown({"r", "Add", "", "nine"}, {}) == "Add ⟦ nine</s>⟧");
  ColumnMappedOptions options;
  options.answer_start = AnswerStart::prompt;  // " nine" is counted to the prompt
  CHECK(shown(sum, options) == "Add the numbers. 4 and 5 nine⟦</s>⟧");
  options.answer_only_loss_mask = false;
  options.rows.append_eos = false;
  CHECK(shown(sum, options).ends_with(" the numbers. 4 and 5 nine⟧"));
}

TEST_CASE("column_mapped: truncation of the context") {
  ColumnMappedOptions options;
  options.rows.truncation = Truncation::context;
  const auto whole = column_mapped_row(sum, sample_tokenizer(), options).size();
  options.rows.seq_length = whole - 2;
  const std::string cut = shown(sum, options);
  CHECK(cut.ends_with(" 4 and 5⟦ nine</s>⟧"));
  CHECK(cut.size() < shown(sum, {}).size());
}

TEST_CASE("column_mapped: a chat template") {
  ColumnMappedOptions options;
  options.chat_template =
      ChatTemplate("t", "{% for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}");
  CHECK(shown(sum, options) == "[system] Add the numbers. [user] 4 and 5 ⟦[assistant] nine ⟧");
  CHECK(shown({"r", std::nullopt, "4", "n"}, options).starts_with("[system]  [user] 4 "));
}

TEST_CASE("column_mapped: rows and their errors") {
  const TestDir dir;
  spit(dir / "f.jsonl",
       "{\"id\": \"a\", \"prompt\": \"p\", \"completion\": \"c\"}\n"
       "{\"prompt\": \"p\", \"completion\": \"c\", \"system\": null}\n");
  const auto rows = mapped_rows(dir / "f.jsonl", {"system", "prompt", "completion"});
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].id == "a");
  CHECK(rows[1].id == "row 1");
  CHECK_FALSE(rows[1].context);
  const ColumnMapping mapping{std::nullopt, "prompt", "completion"};
  CHECK(
      complaint(R"({"prompt": "p"})", mapping)
          .find(
              R"(column_mapped reads {"prompt": question, "completion": answer}, the columns of column_mapping)") !=
      std::string::npos);
  CHECK(complaint(R"({"completion": "p"})", mapping)
            .find(R"(got one without "prompt", with the keys "completion")") != std::string::npos);
  CHECK(complaint(R"({"prompt": "p", "completion": null})", mapping)
            .find(R"(got one whose "completion" is null, with)") != std::string::npos);
  CHECK(complaint(R"({"completion": "p"})", mapping).find("want a row for data set class column_mapped") !=
        std::string::npos);
  CHECK(
      complaint(R"({"prompt": "p", "completion": 1})", mapping).starts_with(": 'line 1.completion': want a"));
}

TEST_CASE("column_mapped: an error of a template names file, line and row") {
  const TestDir dir;
  const std::string path = (dir / "f.jsonl").string();
  spit(path, "\n{\"id\": \"a\", \"prompt\": \"p\", \"completion\": \"c\"}\n");
  ColumnMappedOptions options{.files = {path}, .mapping = {std::nullopt, "prompt", "completion"}};
  options.chat_template = ChatTemplate("t", "{{ raise_exception('no') }}");
  CHECK_THROWS_WITH_AS(rows_in_memory(column_mapped_rows(sample_tokenizer(), options)),
                       doctest::Contains((path + ": 'line 2': row 'a': ").c_str()), Error);
}
