#include <nlohmann/json.hpp>

#include "tests/bad_input/refused.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {
namespace fs = std::filesystem;

/// One paragraph "one two three" with two questions that have `answers`.
Json squad(const Json& answers, const Json& more = Json::object()) {
  Json question{{"id", "q1"}, {"question", "what"}, {"answers", answers}};
  question.update(more);
  Json other = question;
  other["id"] = "q2";
  return {{"data",
           {{{"title", "t"}, {"paragraphs", {{{"context", "one two three"}, {"qas", {question, other}}}}}}}}};
}
Json answer(const Json& text, const Json& start) {
  return Json::array({{{"text", text}, {"answer_start", start}}});
}

class SquadDir : public TestDir {
 public:
  SquadDir() {
    write_tiny_config(*this / "model");
    spit(*this / "recipe.yaml", cat(R"(
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_config
  config: {pretrained_model_name_or_path: model}
tokenizer: {pretrained_model_name_or_path: )",
                                    sample_tokenizer().string(), R"(}
step_scheduler: {global_batch_size: 2, local_batch_size: 2, max_steps: 1}
dataset: {_target_: squad, dataset_name: data.json, seq_length: 32, truncation: true}
optimizer: {_target_: torch.optim.AdamW, lr: 1.0e-3}
checkpoint: {enabled: false, checkpoint_dir: out}
)"));
    data(dump_json(squad(answer("two", 4))));
  }
  void data(const std::string& text, const std::string& name = "data.json") const {
    spit(path() / name, text);
  }
  void refuse(const std::vector<std::string>& parts, const std::vector<std::string>& overrides = {}) const {
    CAPTURE(parts.back());
    check_refused(path(), train_with(overrides), parts);
  }
};
}  // namespace

TEST_CASE("bad SQuAD files: refused before training with file, question, wish and fact") {
  const SquadDir dir;
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases{
      {"hello", {"data.json", "not valid JSON at byte 1"}},
      {"", {"data.json", "not valid JSON"}},
      {R"({"data": []})", {"data.json", "no questions"}},
      {R"([])", {"data.json", "no questions"}},
      {R"({"data": 3})", {"'data': want a list, got 3"}},
      {R"({"data": [{"paragraphs": [{"qas": []}]}]})", {"context"}},
      {dump_json(squad(answer("two", "4"))), {"answer_start", "want an integer"}},
      {dump_json(squad(Json::array({{{"answer_start", 4}}}))), {"answers[0].text", "got none"}},
      {dump_json(squad(3)), {"answers"}},
      {dump_json(squad(nullptr)), {"(question \"q1\").answers", "got none"}},
      {dump_json(squad(Json::array(), {{"is_impossible", false}})), {"is_impossible is false", "0 answers"}},
  };
  for (const auto& [text, parts] : cases) {
    dir.data(text);
    dir.refuse(parts);
  }
}

TEST_CASE("bad data sets: missing files, hub names and empty selections are refused") {
  const SquadDir dir;
  dir.data("", "empty.jsonl");
  dir.data("{\"id\": \"a\"\n", "broken.jsonl");
  dir.refuse({"nope.json", "does not exist", "working directory"}, {"dataset.dataset_name=nope.json"});
  dir.refuse({"'rajpurkar/squad'", "nothing is downloaded", "train-v1.1.json"},
             {"dataset.dataset_name=rajpurkar/squad"});
  dir.refuse({"empty.jsonl", "no questions"}, {"dataset.dataset_name=empty.jsonl"});
  dir.data("{\"prompt\": \"a\", \"completion\": \"b\"}\n", "pairs.jsonl");
  dir.refuse({"pairs.jsonl: 'line 1'", "class squad", "\"prompt\", \"completion\"", "class column_mapped"},
             {"dataset.dataset_name=pairs.jsonl"});
  dir.data("{\"id\": \"a\"}\n{\"id\": \"b\"}\n", "rows.txt");
  dir.refuse({"rows.txt", "not valid JSON", "every line is read from files named .jsonl or .ndjson"},
             {"dataset.dataset_name=rows.txt"});
  dir.refuse({"broken.jsonl: line 1", "not valid JSON"}, {"dataset.dataset_name=broken.jsonl"});
  dir.refuse({"split", "no row of 2"}, {"dataset.split=train[:0]"});
  dir.refuse({"'foo['", "slice"}, {"dataset.split=foo["});
  dir.refuse({"2 rows", "no batch of 8"}, {"step_scheduler.global_batch_size=8",
                                           "step_scheduler.local_batch_size=8", "dataloader.drop_last=true"});
  dir.refuse({"seq_length", "got 1"}, {"dataset.seq_length=1"});
  dir.refuse({"none of 2 rows fits packed_sequence_size 4"},
             {"dataset.truncation=false", "packed_sequence.packed_sequence_size=4"});
  dir.refuse({"'absent.json'", "does not exist", "working directory"},
             {"validation_dataset={_target_: squad, dataset_name: absent.json}"});
  const auto conversation = [](const char* file) {
    return std::vector<std::string>{cat("dataset={_target_: messages, path_or_dataset_id: ", file, "}")};
  };
  dir.data("", "none.jsonl");
  dir.refuse({"none.jsonl", "no conversations"}, conversation("none.jsonl"));
  dir.data("{\"messages\": [{\"role\": \"alien\", \"content\": \"x\"}]}\n", "role.jsonl");
  dir.refuse({"role.jsonl", "alien"}, conversation("role.jsonl"));
  dir.data("{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n", "user.jsonl");
  dir.refuse({"user.jsonl", "none of 1 row has a label"}, conversation("user.jsonl"));
  const auto mapped = [](const char* mapping) {
    return std::vector<std::string>{
        cat("dataset={_target_: column_mapped, path: pairs.jsonl, column_mapping: ", mapping, "}")};
  };
  dir.refuse({"pairs.jsonl: 'line 1'", "class column_mapped", "\"reply\": answer"},
             mapped("{question: prompt, answer: reply}"));
  dir.refuse({"dataset.column_mapping.answer", "is missing"}, mapped("{question: prompt}"));
  dir.refuse({"dataset.column_mapping.question", "is missing"}, mapped("{answer: completion}"));
  dir.data("{\"ctx\": \"a\", \"endings\": [\"b\"], \"label\": \"\"}\n", "ends.jsonl");
  dir.refuse({"ends.jsonl: 'line 1.label'", "the number of the right ending"},
             {"dataset={_target_: HellaSwag, path_or_dataset: ends.jsonl}"});
  dir.refuse({"dataset.paths", "'tokens.idx' does not exist"},
             {"dataset={_target_: MegatronPretraining, paths: tokens, seq_length: 8}"});
  dir.data("short", "tokens.idx");
  dir.data("", "tokens.bin");
  dir.refuse({"tokens.idx: want an index of Megatron's"},
             {"dataset={_target_: MegatronPretraining, paths: tokens, seq_length: 8}"});
}

TEST_CASE("bad data sets: rows that cannot be padded to seq_length are refused before the first step") {
  const SquadDir dir;
  check_refused(
      dir.path(),
      train_with({"dataset.seq_length=8", "dataset.padding=max_length", "dataset.truncation=false"}),
      {"row 'q", "seq_length is 8", "truncation: true"});
}

TEST_CASE("vocabularies: data with ids the model does not know are refused before the first step") {
  const SquadDir squad_dir;
  Json config = read_json_file(squad_dir / "model" / "config.json");
  config["vocab_size"] = 300;
  spit(squad_dir / "model" / "config.json", dump_json(config));
  squad_dir.refuse({"token ids up to 1999", "vocab_size is 300"});
  squad_dir.refuse({"mock", "vocab_size is 500", "300"},
                   {"dataset={_target_: mock, vocab_size: 500, seq_length: 16, num_samples: 8}"});

  for (const char* tensor : {"input_ids", "labels"}) {
    const ModelDir dir("train20");
    edit_safetensors(dir / "tokens.safetensors", [&](RawSafetensors& f) { f.set_last(tensor, 99); });
    check_refused(dir.path(), train_with({}), {"tokens.safetensors", "row 79", "99", "vocab_size is 96"});
  }
}

TEST_CASE("tokens without any label are refused, a missing file by the key that names it") {
  const ModelDir dir("train20");
  edit_safetensors(dir / "tokens.safetensors",
                   [](RawSafetensors& f) { f.fill("labels", std::int64_t{-100}); });
  check_refused(dir.path(), train_with({}), {"tokens.safetensors", "no label"});
  const ModelDir good("train20");
  check_refused(good.path(), train_with({"validation_dataset={_target_: tokens, path: nope}"}),
                {"--set validation_dataset.path: 'nope' does not exist"});
}

TEST_CASE("forward: input_ids and labels that do not fit are refused") {
  const auto refuse = [](const std::function<void(RawSafetensors&)>& edit,
                         const std::vector<std::string>& parts) {
    CAPTURE(parts.back());
    const ModelDir dir;
    edit_safetensors(dir / "input.safetensors", edit);
    std::vector<std::string> arguments = forward_here;
    arguments.emplace_back("--grads");
    check_refused(dir.path(), arguments, parts);
  };
  refuse([](auto& f) { f.set_last("input_ids", 96); },
         {"input.safetensors: input_ids: row 1, position", "id 96", "[0, 96)"});
  refuse([](auto& f) { f.set_last("input_ids", -1); }, {"id -1"});
  refuse([](auto& f) { f.set_last("input_ids", std::int64_t{1} << 62); }, {"id 4611686018427387904"});
  refuse([](auto& f) { f.set_last("labels", 96); }, {"input.safetensors: labels", "id 96", "[0, 96)"});
  refuse([](auto& f) { f.set_last("labels", -1); }, {"labels", "id -1", "-100"});
  refuse([](auto& f) { f.header["input_ids"]["dtype"] = "F64"; }, {"input_ids: want i64, got f64"});
  refuse(
      [](auto& f) {
        const auto s = f.header["input_ids"]["shape"];
        f.header["input_ids"]["shape"] = {s[0].template get<int>() * s[1].template get<int>()};
      },
      {"input_ids: want [batch, seq]"});
  refuse(
      [](auto& f) {
        for (const char* name : {"input_ids", "labels"}) {
          f.header[name]["shape"] = {0, 7};
          f.header[name]["data_offsets"] = {0, 0};
        }
        f.data.clear();
      },
      {"input_ids: want at least one id"});
  refuse(
      [](auto& f) {
        f.header["tokens"] = f.header["input_ids"];
        f.header.erase("input_ids");
      },
      {"tensor 'tokens' (I64 [", "want input_ids and labels alone"});
}
