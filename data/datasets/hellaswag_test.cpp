#include "data/datasets/hellaswag.h"

#include <doctest/doctest.h>

#include "data/datasets/describe.h"
#include "data/datasets/test_rows.h"

using namespace nemocube;
using testing::complaint_about;
using testing::rows_of_file;
using testing::sample_tokenizer;
using testing::spit;
using testing::TestDir;

namespace {

std::string row(const std::string& ctx, const std::string& label) {
  return cat(R"({"ind": 7, "ctx": ")", ctx, R"(", "endings": ["sings.", "runs away."], "label": )", label,
             "}\n");
}

std::string complaint(const std::string& text) {
  return complaint_about(text, [](const std::filesystem::path& path) { rows_of_file(path, read_hellaswag); });
}

}  // namespace

TEST_CASE("hellaswag: the right ending is the target") {
  const TestDir dir;
  spit(dir / "f.jsonl", row("A man", "1") + row("Then a very old and tired man", R"("0")"));
  HellaSwagOptions options{.files = {dir / "f.jsonl"}};
  const auto data = rows_in_memory(hellaswag_rows(sample_tokenizer(), options));
  REQUIRE(data->size() == 2);
  const Sample first = data->sample(0), second = data->sample(1);
  CHECK(first.id == "7");
  CHECK(describe_supervision(first, sample_tokenizer()) == "A man⟦ runs away.</s>⟧");
  CHECK(describe_supervision(second, sample_tokenizer()) == "Then a very old and tired man⟦ sings.</s>⟧");
  CHECK(first.positions() == second.positions());
  CHECK(second.positions() % 8 == 0);
  CHECK(second.positions() - second.content_length() < 8);
  CHECK(first.input_ids[static_cast<std::size_t>(first.content_length()) - 1] == 2);  // EOS stays as an input

  options.pad_to_max_length = false;
  options.append_eos = false;
  options.separator = "";
  options.selection.limit_dataset_samples = 1;
  const auto bare = rows_in_memory(hellaswag_rows(sample_tokenizer(), options));
  CHECK(bare->size() == 1);
  CHECK(bare->sample(0).positions() == bare->sample(0).content_length());
  CHECK(describe_supervision(bare->sample(0), sample_tokenizer()) == "A man⟦runs away.⟧");
}

TEST_CASE("hellaswag: errors name file and row") {
  const std::string label = ": 'line 2.label': want the number of the right ending, 0 to 1, got ";
  CHECK(complaint(row("a", "0") + row("b", R"("")")).starts_with(label));
  CHECK(complaint(row("a", "0") + row("b", "2")).starts_with(label));
  CHECK(complaint(row("a", "0") + row("b", "-1")).starts_with(label));
  CHECK(complaint(R"({"ctx": "a", "label": 0})")
            .starts_with(": 'line 1': want a row for data set class hellaswag, got one without \"endings\", "
                         "with the keys"));
  CHECK(complaint(R"({"ind": 1.5, "ctx": "a", "endings": ["b"], "label": 0})")
            .starts_with(": 'line 1.ind': want a text or an integer, got 1.5"));
  CHECK(complaint(R"({"ctx": "a", "endings": [], "label": 0})").find("want a list of endings") !=
        std::string::npos);
}
