#include "data/datasets/squad.h"

#include <doctest/doctest.h>

#include "data/datasets/text.h"
#include "data/json/test_dir.h"
#include "tests/support/paths.h"

using namespace nemocube;
using nemocube::testing::source_path;

namespace {

const std::string samples = source_path("data/samples");

const Tokenizer& sample_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(samples + "/tokenizer");
  return tokenizer;
}

SquadQuestion question_with(const std::string& answer) {
  return {"q", "It was " + answer + " there.", "What was it?", {{answer, 7}}};
}

std::string decoded_labels(const Sample& sample) {
  std::vector<std::int64_t> targets;
  for (const std::int64_t label : sample.labels)
    if (label != ignored_label) targets.push_back(label);
  return sample_tokenizer().decode(targets, false);
}

std::string decoded(const TokenRow& row) {
  return sample_tokenizer().decode(std::vector<std::int64_t>(row.ids.begin(), row.ids.end()), false);
}

/// Every kept row has labels, and they spell answer and EOS whenever the row has room for them.
void check_rows(const std::string& file, const RowOptions& rows, std::int64_t want_rows) {
  const SquadOptions options{.dataset_name = file, .rows = rows};
  const auto questions = read_squad(options);
  CHECK(static_cast<std::int64_t>(questions.size()) == want_rows);
  const auto data = make_squad_dataset(sample_tokenizer(), options);
  REQUIRE(data->size() == want_rows);  // truncation that keeps the answer drops no row
  std::int64_t whole = 0, spelled = 0;
  for (std::int64_t i = 0; i < data->size(); ++i) {
    const SquadQuestion& question = questions[static_cast<std::size_t>(i)];
    CAPTURE(question.id);
    const Sample sample = data->sample(i);
    check_sample(sample);
    REQUIRE(sample.id == question.id);
    REQUIRE(sample.label_tokens() > 0);
    REQUIRE(sample.positions() ==
            (rows.padding == Padding::max_length ? rows.seq_length : sample.content_length()));
    const TokenRow row = squad_row(question, sample_tokenizer(), options);
    std::int64_t targets = 0;
    for (const bool supervised : row.supervised) targets += supervised;
    if (row.size() <= rows.seq_length) ++whole;
    if (targets >= rows.seq_length) continue;
    ++spelled;
    REQUIRE(sample.label_tokens() == targets);
    REQUIRE(std::string(strip(decoded_labels(sample))) == question.target() + "</s>");
  }
  MESSAGE(file.substr(file.rfind('/') + 1), ", seq_length ", rows.seq_length,
          std::string(rows.truncation == Truncation::context ? ", context truncated: " : ": "), data->size(),
          " rows, ", whole, " not truncated, ", spelled, " with the whole answer");
}

}  // namespace

TEST_CASE("squad: the row is prompt, answer and EOS, the answer is the target") {
  const SquadOptions options;
  for (const auto& [answer, targets] : {std::pair<std::string, std::string>{"a frog", " a frog</s>"},
                                        {"  frog\n", " frog</s>"},
                                        {"12 frogs", "12 frogs</s>"},
                                        {"“frogs”", " “frogs”</s>"},
                                        {"", "</s>"}}) {
    CAPTURE(answer);
    const TokenRow row = squad_row(question_with(answer), sample_tokenizer(), options);
    CHECK(decoded(row) == "Context: It was " + answer + " there. Question: What was it? Answer: " +
                              std::string(strip(answer)) + "</s>");
    CHECK(decoded_labels(finish_row(row, {}, 0)) == targets);
  }
}

TEST_CASE("squad: the space in front of the answer can be a target") {
  const SquadOptions options{.answer_start = AnswerStart::space};
  for (const auto& [answer, targets] : {std::pair<std::string, std::string>{"a frog", " a frog</s>"},
                                        {"12 frogs", " 12 frogs</s>"},
                                        {"", " </s>"}}) {
    CAPTURE(answer);
    const SquadQuestion question = question_with(answer);
    const TokenRow row = squad_row(question, sample_tokenizer(), options);
    CHECK(decoded_labels(finish_row(row, {}, 0)) == targets);
    // Prompt ids at generation are exactly those in front of the targets.
    const auto prompt = sample_tokenizer().encode(squad_prompt(question), true);
    REQUIRE(prompt.size() < row.ids.size());
    for (std::size_t i = 0; i < prompt.size(); ++i) {
      CHECK(prompt[i] == row.ids[i]);
      CHECK_FALSE(row.supervised[i]);
    }
    CHECK(row.supervised[prompt.size()]);
  }
}

TEST_CASE("squad: EOS once, or not at all") {
  SquadOptions options;
  const TokenRow twice = squad_row(question_with("frog</s>"), sample_tokenizer(), options);
  CHECK(decoded_labels(finish_row(twice, {}, 0)) == " frog</s>");
  options.rows.append_eos = false;
  CHECK(decoded_labels(finish_row(squad_row(question_with("frog"), sample_tokenizer(), options), {}, 0)) ==
        " frog");
}

TEST_CASE("squad: truncation of the context keeps question and answer") {
  SquadOptions options{.rows = {.seq_length = 24, .truncation = Truncation::context}};
  const SquadQuestion question{
      "q", "One two three four five six seven eight nine ten frogs.", "How many?", {{"ten", 45}}};
  TokenRow row = squad_row(question, sample_tokenizer(), options);
  REQUIRE(row.size() > 24);
  truncate_row(row, Truncation::context, 24);
  CHECK(row.size() == 24);
  const std::string text = decoded(row);
  CHECK(text.starts_with("Context:"));
  CHECK(text.ends_with("frogs. Question: How many? Answer: ten</s>"));
}

TEST_CASE("squad: split, limit and impossible questions") {
  SquadOptions options{.dataset_name = samples, .split = "validation[2:5]"};
  CHECK(read_squad(options).size() == 3);
  options.split = "train";
  options.limit_dataset_samples = 7;
  CHECK(make_squad_dataset(sample_tokenizer(), options)->size() == 7);

  const testing::TestDir dir;
  testing::spit(dir / "f.json", R"([{"id": "a", "context": "c", "question": "q", "answers": []},
    {"id": "b", "context": "c", "question": "q", "answers": [{"text": "c", "answer_start": 0}]}])");
  SquadOptions impossible{.dataset_name = (dir / "f.json").string()};
  CHECK(make_squad_dataset(sample_tokenizer(), impossible)->sample(0).label_tokens() == 1);
  impossible.rows.append_eos = false;
  const auto kept = make_squad_dataset(sample_tokenizer(), impossible);
  CHECK(kept->size() == 1);
  CHECK(kept->dropped() == 1);
  CHECK(kept->sample(0).id == "b");
}

TEST_CASE("squad: right truncation loses answers and says so") {
  const SquadOptions options{
      .dataset_name = samples,
      .rows = {.seq_length = 90, .padding = Padding::max_length, .truncation = Truncation::right}};
  const auto data = make_squad_dataset(sample_tokenizer(), options);
  CHECK(data->dropped() > 0);
  CHECK(data->size() + data->dropped() == 580);
  for (std::int64_t i = 0; i < data->size(); ++i) REQUIRE(data->sample(i).label_tokens() > 0);
}

TEST_CASE("squad: the sample data") {
  check_rows(samples + "/train.json", {.seq_length = 512}, 580);
  for (const auto how : {Truncation::left, Truncation::context})
    check_rows(samples + "/validation.json",
               {.seq_length = 64, .padding = Padding::max_length, .truncation = how}, 49);
}

TEST_CASE("squad: real questions") {
  const std::string file = source_path("../shared/data/squad_v1.1_part_a.json");
  if (!std::filesystem::exists(file)) {
    MESSAGE("no ../shared/data/squad_v1.1_part_a.json: case did not run");
    return;
  }
  for (const std::int64_t length : {128, 256, 512})
    for (const auto how : {Truncation::left, Truncation::context})
      check_rows(file, {.seq_length = length, .padding = Padding::max_length, .truncation = how}, 1621);
}
