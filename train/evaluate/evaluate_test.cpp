#include "train/evaluate/evaluate.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "core/host_wait.h"
#include "data/datasets/row.h"
#include "data/datasets/squad.h"
#include "data/json/json.h"
#include "data/json/test_dir.h"
#include "model/test_models.h"
#include "tests/support/paths.h"
#include "train/generate/generate.h"
#include "train/generate/test_speaker.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

using Ids = std::vector<std::int64_t>;
/// Questions whose context is "A green frog and a toad.", with these answers.
class Questions : public TestDir {
 public:
  explicit Questions(const std::vector<std::vector<std::string>>& answers) {
    const std::string context = "A green frog and a toad.";
    std::string lines;
    for (const auto& texts : answers) {
      Json starts = Json::array();
      for (const std::string& text : texts) starts.push_back(context.find(text));
      lines += dump_json({{"id", cat("q", ids++)},
                          {"context", context},
                          {"question", "Who?"},
                          {"answers", {{"text", texts}, {"answer_start", starts}}}},
                         -1) +
               "\n";
    }
    spit(*this / "questions.jsonl", lines);
    section.dataset_name = (*this / "questions.jsonl").string();
  }
  SquadResult answers(Stack& model, const Ids& stop = {eos}) const {
    ParallelModel alone(model);
    return answer_squad(alone, tokenizer(), section, options, stop, nullptr);
  }
  std::string first_answer(Stack& model, const Ids& stop = {eos}) const {
    return answers(model, stop).answered.at(0).prediction;
  }
  DatasetSection section;
  EvaluationSection options;

 private:
  int ids = 0;
};

}  // namespace

TEST_CASE("validate: the mean over all labels of all rows, whatever the batches") {
  Stack model(tiny_config(), DType::f32, Device::cpu);
  randomise(model, 3);
  ParallelModel alone(model);
  std::vector<TokenRow> rows(7);
  std::int32_t next = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].id = cat("row ", i);
    for (std::size_t t = 0; t < 2 + 3 * i % 8; ++t)
      rows[i].append(next = (7 * next + 5) % 23, t > 0 && (t % 3 != 2 || i == 1));
  }
  const auto data = std::make_shared<RowDataset>("rows", rows, RowOptions{}, 0);
  REQUIRE(data->size() == 7);
  double sum = 0;
  std::int64_t labels = 0;
  for (std::int64_t i = 0; i < data->size(); ++i) {
    const Sample sample = data->sample(i);
    Context ctx;
    const Tensor logits = model.logits(model
                                           .hidden(ctx, Tensor::from(sample.input_ids, {sample.positions()}),
                                                   Sequences::uniform(1, sample.positions()))
                                           .value());
    for (std::int64_t t = 0; t < sample.positions(); ++t) {
      const std::int64_t label = sample.labels[static_cast<std::size_t>(t)];
      if (label == ignored_label) continue;
      double total = 0;
      for (int v = 0; v < 23; ++v) total += std::exp(static_cast<double>(logits.row<float>(t)[v]));
      sum += std::log(total) - static_cast<double>(logits.row<float>(t)[label]);
      ++labels;
    }
  }
  for (const std::int64_t batch : {1, 2, 3, 7, 50}) {
    CAPTURE(batch);
    const ValidationResult v = validate(alone, data, batch, nullptr);
    CHECK(v.loss == doctest::Approx(sum / static_cast<double>(labels)).epsilon(1e-5));
    CHECK(v.label_tokens == labels);
    CHECK(v.samples == 7);
  }

  std::vector<std::int64_t> done;
  validate(alone, data, 2, nullptr, {}, [&](std::int64_t finished, std::int64_t total) {
    CHECK(total == 7);
    done.push_back(finished);
  });
  CHECK(done == std::vector<std::int64_t>{2, 4, 6, 7});

  // On another device the same bits, and the host waits once.
  Stack guarded(tiny_config(), DType::f32, Device::guard);
  copy_weights(guarded, model);
  ParallelModel there(guarded);
  reset_host_waits();
  const double loss = validate(there, data, 2, nullptr).loss;
  CHECK(host_waits() == std::map<std::string, std::int64_t>{{"validation loss", 1}});
  CHECK(loss == validate(alone, data, 2, nullptr).loss);
}

TEST_CASE("validate: without a labelled token there is no loss, and not a perfect one") {
  Stack model(tiny_config(), DType::f32, Device::cpu);
  randomise(model, 3);
  ParallelModel alone(model);
  struct Unlabelled : Dataset {
    std::int64_t size() const override { return 3; }
    Sample sample(std::int64_t) const override {
      Sample s;
      s.input_ids = {1, 2};
      s.labels = {ignored_label, ignored_label};
      s.lengths = {2};
      return s;
    }
  };
  const ValidationResult v = validate(alone, std::make_shared<Unlabelled>(), 2, nullptr);
  CHECK(v.samples == 3);
  CHECK(v.label_tokens == 0);
  CHECK(std::isnan(v.loss));
}

TEST_CASE("answer_squad: predictions and their scores under the rules of version 1.1") {
  const Questions questions({{"frog"}, {"green frog"}, {"toad", "frog"}, {"toad"}});
  Says model(" the frog");
  const SquadResult result = questions.answers(model);
  REQUIRE(result.answered.size() == 4);
  CHECK(result.version == SquadVersion::v1_1);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(result.answered[i].prediction == "the frog");
    CHECK(result.answered[i].id == cat("q", i));
    CHECK(result.answered[i].score.em == (i % 2 == 0 ? 1 : 0));
  }
  CHECK(result.answered[2].answers == std::vector<std::string>{"toad", "frog"});
  CHECK(result.score.total == 4);
  CHECK(result.score.em == doctest::Approx(50));
  CHECK(result.score.f1 == doctest::Approx(100 * (1 + 2.0 / 3 + 1 + 0) / 4));
}

TEST_CASE("answer_squad: with questions that have no answer the rules are those of version 2.0") {
  const Questions questions({{}, {"toad"}, {}});
  Says silent(""), talks(" toad");
  const SquadResult none = questions.answers(silent), some = questions.answers(talks);
  CHECK(none.version == SquadVersion::v2_0);
  CHECK(none.answered[0].prediction.empty());
  CHECK(none.answered[0].score.em == 1);
  CHECK(none.answered[0].score.f1 == 1);
  CHECK(none.answered[1].score.em == 0);
  CHECK(none.score.em == doctest::Approx(200.0 / 3));
  CHECK(none.score.f1 == doctest::Approx(200.0 / 3));
  CHECK(some.score.em == doctest::Approx(100.0 / 3));
  CHECK(some.score.f1 == doctest::Approx(100.0 / 3));
}

TEST_CASE("answer_squad: the version is that of all questions, not of those that limit_samples leaves") {
  Questions questions({{"toad"}, {"frog"}, {}});
  questions.options.limit_samples = 2;
  Says model(" toad");
  const SquadResult result = questions.answers(model);
  CHECK(result.version == SquadVersion::v2_0);
  CHECK(result.answered.size() == 2);
  CHECK(result.score.total == 2);
  CHECK(result.score.em == doctest::Approx(50));
}

TEST_CASE("answer_squad: answers end at a newline, at any stop id, at max_new_tokens") {
  Questions questions({{"frog"}});
  Says model(" frog\n toad");
  CHECK(questions.first_answer(model) == "frog");
  questions.options.stop_at_newline = false;
  CHECK(questions.first_answer(model) == "frog\n toad");
  const Ids toad = tokenizer().encode(" toad", false);
  CHECK(questions.first_answer(model, {eos, toad.at(0)}) == "frog");
  Says long_winded(" green frog and a toad");
  const Ids all = tokenizer().encode(" green frog and a toad", false);
  questions.options.max_new_tokens = 2;
  CHECK(questions.first_answer(long_winded) == tokenizer().decode(std::span(all).first(2), true).substr(1));
}

TEST_CASE("answer_squad: the model sees the prompts, without their left end where the section truncates") {
  ModelConfig c = tiny_config("M*-");
  c.vocab_size = tokenizer().vocab_size();
  Stack model(c, DType::f32, Device::cpu);
  randomise(model, 9);
  ParallelModel alone(model);
  Questions questions(std::vector<std::vector<std::string>>(40, {"toad"}));
  questions.options.max_new_tokens = 5;
  questions.options.stop_at_newline = false;
  questions.section.seq_length = 9;
  Ids prompt = tokenizer().encode(squad_prompt(read_squad(questions / "questions.jsonl").at(0)), false);
  const Ids tail(prompt.end() - 9, prompt.end());
  std::vector<std::string> seen;
  for (const bool truncation : {false, true}) {
    questions.section.truncation = truncation;
    GenerateOptions greedy;
    greedy.max_new_tokens = 5;
    const Ids made = generate(alone, {truncation ? tail : prompt}, greedy).at(0);
    const SquadResult result = questions.answers(model, {});
    REQUIRE(result.answered.size() == 40);
    seen.push_back(result.answered[0].prediction);
    CHECK(tokenizer().decode(made, true).find(seen.back()) != std::string::npos);
    CHECK(result.answered[39].prediction == seen.back());
  }
  CHECK(seen[0] != seen[1]);
}

TEST_CASE("answer_squad: special tokens in front stay only where they leave room in seq_length") {
  ModelConfig c = tiny_config("M*-");
  c.vocab_size = tokenizer().vocab_size();
  Stack model(c, DType::f32, Device::cpu);
  randomise(model, 9);
  ParallelModel alone(model);
  Questions questions({{"toad"}});
  Json file = read_json_file(source_path("data/samples/tokenizer/tokenizer.json"));
  const Ids front{5, 6, 7};
  Json pieces = Json::array();
  for (int i = 0; i < 3; ++i) pieces.push_back({{"SpecialToken", {{"id", cat("front", i)}, {"type_id", 0}}}});
  pieces.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  Json specials = Json::object();
  for (std::size_t i = 0; i < 3; ++i)
    specials[cat("front", i)] = {
        {"id", cat("front", i)}, {"ids", Json::array({front[i]})}, {"tokens", {"x"}}};
  file["post_processor"] = {{"type", "TemplateProcessing"}, {"single", pieces}, {"pair", Json::array()}};
  file["post_processor"]["special_tokens"] = specials;
  spit(questions / "tokenizer.json", dump_json(file));
  const Tokenizer prefixed = Tokenizer::load(questions / "tokenizer.json");
  REQUIRE(prefixed.special_prefix() == front);

  const Ids prompt = tokenizer().encode(squad_prompt(read_squad(questions / "questions.jsonl").at(0)), false);
  questions.section.truncation = true;
  questions.options.max_new_tokens = 4;
  questions.options.stop_at_newline = false;
  for (const std::int64_t length : {1, 2, 3, 4, 5, 1000}) {
    CAPTURE(length);
    questions.section.seq_length = length;
    const bool keeps = length > 3;
    const std::int64_t room = std::min(length - (keeps ? 3 : 0), std::ssize(prompt));
    Ids want(prompt.end() - room, prompt.end());
    if (keeps) want.insert(want.begin(), front.begin(), front.end());
    GenerateOptions greedy;
    greedy.max_new_tokens = 4;
    const Ids made = generate(alone, {want}, greedy).at(0);
    const SquadResult result =
        answer_squad(alone, prefixed, questions.section, questions.options, {}, nullptr);
    CHECK(tokenizer().decode(made, true).find(result.answered.at(0).prediction) != std::string::npos);
  }
}

TEST_CASE("answer_squad: with a chat template the question is the user's message") {
  Says model("a green frog");
  ParallelModel alone(model);
  const Questions questions({{"A green frog"}});
  const auto answers = [&](const std::string& source) {
    return answer_squad(alone, tokenizer(), questions.section, questions.options, {eos}, nullptr, {}, {},
                        ChatTemplate("t", source));
  };
  CHECK(answers("{{ messages[0].content }}\n").answered.at(0).prediction == "a green frog");
  CHECK_THROWS_WITH_AS(
      answers("{{ raise_exception(messages | tojson ~ add_generation_prompt) }}"),
      doctest::Contains(
          R"([{"role": "user", "content": "Context: A green frog and a toad. Question: Who? Answer: "}]True)"),
      Error);
}
