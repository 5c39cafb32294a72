#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "data/safetensors/reader.h"
#include "data/safetensors/writer.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/support/compare.h"
#include "tests/support/occurrences.h"
#include "tests/support/paths.h"
#include "tests/training/config_warning.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;

std::vector<Json> json_lines(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(parse_json(line, "output"));
  return lines;
}

// One short run for all: its directory with checkpoints in straight/.
const RunDir& trained() {
  static const RunDir dir;
  static const int code = dir.train({"step_scheduler.max_steps=8", "mfu.peak_tflops=0.5"}).exit_code;
  REQUIRE(code == 0);
  return dir;
}

}  // namespace

TEST_CASE("train: mfu is logged in percent when the machine's peak is known, else null") {
  for (const Json& line : read_jsonl(trained() / "straight" / "training.jsonl")) {
    REQUIRE(line["mfu"].is_number());
    const double flops_per_token =
        line["mfu"].get<double>() / 100 * 0.5e12 / line["content_tokens_per_second"].get<double>();
    // Six for each parameter used: at least those of the blocks, at most all.
    CHECK(flops_per_token > 6 * 4e3);
    CHECK(flops_per_token < 6 * 73e3);
  }
  const RunDir dir;
  REQUIRE(dir.train({"step_scheduler.max_steps=1", "lr_scheduler=null"}).exit_code == 0);
  CHECK(read_jsonl(dir / "straight" / "training.jsonl").at(0)["mfu"].is_null());
}

TEST_CASE("convert: a checkpoint becomes a model directory with the same bits, and bf16 is each rounded") {
  const fs::path dir = trained().path();
  const fs::path model = dir / "straight" / "LATEST" / "model";
  REQUIRE(nemocube_in(dir, {"convert", "straight/LATEST", "copy"}).exit_code == 0);
  CHECK(names_in(dir / "copy") == names_in(model));
  CHECK(slurp(dir / "copy" / "model.safetensors") == slurp(model / "model.safetensors"));
  REQUIRE(nemocube_in(dir, {"convert", "copy", "half", "--dtype", "bf16"}).exit_code == 0);
  const SafetensorsFile full(dir / "copy" / "model.safetensors"), half(dir / "half" / "model.safetensors");
  REQUIRE(full.tensors().size() == half.tensors().size());
  for (const StoredTensor& t : full.tensors()) {
    CAPTURE(t.name);
    const Tensor h = half.tensor(t.name);
    CHECK_BITS(h, full.tensor(t).to(h.dtype()));
  }
  CHECK(half.at("lm_head.weight").dtype == "BF16");
  CHECK(half.at("backbone.layers.0.mixer.A_log").dtype == "F32");
  const ProcessResult again = nemocube_in(dir, {"convert", "copy", "half"});
  CHECK(again.exit_code == 2);
  CHECK(again.err.find("not empty") != std::string::npos);
}

TEST_CASE("generate: greedy from a checkpoint, the same alone and in a file of prompts") {
  const fs::path dir = trained().path();
  const std::string first = "Context: Bees make honey. Question: Who makes honey? Answer:", second = "The";
  spit(dir / "prompts.txt", first + "\n" + second + "\r\n");
  const std::vector<std::string> common{"generate",         "--model", "straight/LATEST", "--json",
                                        "--max-new-tokens", "6",       "--ignore-eos"};
  const auto with = [&](const std::vector<std::string>& more) {
    auto all = common;
    all.insert(all.end(), more.begin(), more.end());
    const ProcessResult run = nemocube_in(dir, all);
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    return json_lines(run.out);
  };
  const auto both = with({"--prompt-file", "prompts.txt"});
  REQUIRE(both.size() == 2);
  CHECK(both[0]["prompt"] == first);
  CHECK(both[1]["prompt"] == second);
  CHECK(both[0]["ids"].size() == 6);
  const auto alone = with({"--prompt", first}), other = with({"--prompt", second});
  CHECK(alone.at(0)["ids"] == both[0]["ids"]);
  CHECK(alone.at(0)["text"] == both[0]["text"]);
  CHECK(other.at(0)["ids"] == both[1]["ids"]);
  // In a terminal the text is the same, after the prompt.
  const ProcessResult plain = nemocube_in(
      dir, {"generate", "--model", "straight", "--max-new-tokens", "6", "--ignore-eos", "--prompt", second});
  CHECK(plain.out == second + other[0]["text"].get<std::string>() + "\n");
}

TEST_CASE("generate --chat: each answer continues what the template makes of the conversation so far") {
  const fs::path dir = trained().path();
  const std::vector<std::string> common{"generate", "--model",   "talking",     "--max-new-tokens",
                                        "6",        "--special", "--ignore-eos"};
  const auto with = [&](const std::vector<std::string>& more, const std::string& input) {
    std::vector<std::string> all{"sh", "-c", "exec \"$0\" \"$@\" < input.txt", program()};
    all.insert(all.end(), common.begin(), common.end());
    all.insert(all.end(), more.begin(), more.end());
    spit(dir / "input.txt", input);
    return run_process(all, dir);
  };
  const auto continued = [&](const std::string& prompt) {
    const ProcessResult run = with({"--json", "--prompt", prompt}, "");
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    return json_lines(run.out).at(0)["text"].get<std::string>();
  };
  fs::copy(dir / "straight" / "LATEST" / "model", dir / "talking", fs::copy_options::recursive);
  const ProcessResult mute = with({"--chat"}, "Hi\n");
  CHECK(mute.exit_code == 2);
  CHECK(mute.err.find("talking: has no chat template") != std::string::npos);

  const ProcessResult taken = with({"--chat", "--set", "messages=[]"}, "Hi\n");
  CHECK(taken.exit_code == 2);
  CHECK(taken.err.find("--set: messages comes from the conversation") != std::string::npos);
  const ProcessResult bytes = with({"--chat", "--system", "\xff"}, "Hi\n");
  CHECK(bytes.exit_code == 2);
  CHECK(bytes.err.find("--system: not valid UTF-8 at byte 1") != std::string::npos);

  spit(dir / "talking" / "chat_template.jinja",
       "{% for m in messages %}{{ m.role }}{{ sign }} {{ m.content }}\n{% endfor %}assistant{{ sign }}");
  const ProcessResult talk = with({"--chat", "--system", "Be kind.", "--set", "sign=:"},
                                  "Who makes honey?\n\nBees?\n/clear\nWhy?\n");
  CAPTURE(talk.err);
  REQUIRE(talk.exit_code == 0);
  const std::string begin = "system: Be kind.\nuser: ", first = begin + "Who makes honey?\nassistant:";
  const std::string one = continued(first);
  const std::string two = continued(cat(first, " ", one, "\nuser: Bees?\nassistant:"));
  CHECK(talk.out == cat(one, "\n", two, "\n", continued(begin + "Why?\nassistant:"), "\n"));

  const ProcessResult refused =
      with({"--chat", "--chat-template", "{{ raise_exception('never') }}"}, "\nHi\n");
  CHECK(refused.exit_code == 2);
  CHECK(refused.err.find("standard input: line 2: ") != std::string::npos);
}

TEST_CASE("generate --chat: an answer ends at the template's own end of turn") {
  const fs::path dir = trained().path();
  fs::copy(dir / "straight" / "LATEST" / "model", dir / "turning", fs::copy_options::recursive);
  std::vector<std::string> common;
  const auto said = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all{"sh", "-c", "exec \"$0\" \"$@\" < hi.txt", program()};
    all.insert(all.end(), common.begin(), common.end());
    all.insert(all.end(), more.begin(), more.end());
    const ProcessResult run = run_process(all, dir);
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    return run.out;
  };
  spit(dir / "hi.txt", "Hi\n");
  // A seed with which the model says more than the end of its texts.
  Json ids;
  for (int seed = 1; seed < 50 && ids.empty(); ++seed) {
    common = {"generate", "--model",       "turning", "--max-new-tokens", "6", "--seed",
              cat(seed),  "--temperature", "2"};
    ids = json_lines(said({"--json", "--prompt", "Hi\n"})).at(0)["ids"];
  }
  REQUIRE(!ids.empty());
  const auto first = ids.at(0).get<std::int64_t>();
  // What the model says first becomes the end of the assistant's turns.
  const std::string end = Tokenizer::load(dir / "turning").id_to_token(first);
  spit(dir / "turning" / "tokenizer_config.json", dump_json({{"additional_special_tokens", {end}}}));
  const auto template_with = [&](const std::string& text) {
    spit(dir / "turning" / "chat_template.jinja",
         cat("{% for m in messages %}{{ m.content }}", text, "\n{% endfor %}"));
  };
  template_with("");
  CHECK(said({"--chat", "--special"}) != "\n");
  template_with(cat("{{ '", end, "' if m.role == 'assistant' }}"));
  CHECK(said({"--chat", "--special"}) == "\n");
  CHECK(said({"--chat", "--special", "--ignore-eos"}) != "\n");
}

TEST_CASE("generate: a directory without a tokenizer: the message names --tokenizer") {
  const fs::path dir = trained().path();
  fs::copy(dir / "straight" / "LATEST" / "model", dir / "wordless", fs::copy_options::recursive);
  fs::remove(dir / "wordless" / "tokenizer.json");
  const ProcessResult run = nemocube_in(dir, {"generate", "--model", "wordless", "--prompt", "Bees"});
  CHECK(run.exit_code == 2);
  CHECK(run.err.find("wordless: has no tokenizer.json; name the tokenizer with --tokenizer") !=
        std::string::npos);
}

TEST_CASE("train: chat rows that end turns with another token than the model stops at") {
  const RunDir dir;
  spit(dir / "chats.jsonl",
       R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]})"
       "\n"
       R"({"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Bees."}]})"
       "\n");
  fs::copy(source_path("data/samples/tokenizer"), dir / "tokenizer", fs::copy_options::recursive);
  spit(dir / "tokenizer" / "chat_template.jinja",
       "{% for m in messages %}{{ m.role }}: {{ m.content }}<unk>\n{% endfor %}");
  const std::vector<std::string> overrides{"step_scheduler.max_steps=1",
                                           "step_scheduler.global_batch_size=2",
                                           "lr_scheduler=null",
                                           "validation_dataset=null",
                                           "dataset={_target_: messages, path: chats.jsonl}",
                                           "packed_sequence.packed_sequence_size=0",
                                           "tokenizer.pretrained_model_name_or_path=tokenizer"};
  std::vector<std::string> check{"train", "--check", "recipe.yaml"};
  for (const std::string& o : overrides) check.insert(check.end(), {"--set", o});
  for (const ProcessResult& run : {nemocube_in(dir.path(), check), dir.train(overrides)}) {
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    CHECK(run.err.find("dataset: the chat template ends the assistant's turns with '<unk>' (id 3), which the "
                       "model does not "
                       "stop at, but at '</s>' (id 2)") != std::string::npos);
  }
  const Json saved = read_json_file(dir / "straight" / "LATEST" / "model" / "generation_config.json");
  CHECK(saved["eos_token_id"].get<std::vector<std::int64_t>>() == std::vector<std::int64_t>{2, 3});
}

TEST_CASE("forward: tensors that have no effect are refused by name") {
  const fs::path dir = trained().path();
  write_safetensors(dir / "image.safetensors", [] {
    std::vector<TensorSource> sources;
    const std::vector<std::int64_t> ids{1, 2};
    sources.push_back(source_of("input_ids", Tensor::from(ids, {1, 2}), DType::i64));
    sources.push_back(source_of("patches", Tensor::from<float>({1, 2, 3}, {1, 3}), DType::f32));
    return sources;
  }());
  const ProcessResult run = nemocube_in(dir, {"forward", "--model", "straight/LATEST/model", "--input",
                                              "image.safetensors", "--output", "out.safetensors"});
  CHECK(run.exit_code == 2);
  CHECK(run.err.find("image.safetensors: tensor 'patches' (F32 [1, 3]): want input_ids and labels alone") !=
        std::string::npos);
  // Before anything is loaded: a model without weights.
  fs::create_directories(dir / "without weights");
  fs::copy(dir / "straight/LATEST/model/config.json", dir / "without weights");
  const ProcessResult early = nemocube_in(dir, {"forward", "--model", "without weights", "--input",
                                                "image.safetensors", "--output", "out.safetensors"});
  CHECK(early.exit_code == 2);
  CHECK(early.err == run.err);
}

TEST_CASE("forward: without labels, log-probabilities are those of the next tokens") {
  const fs::path dir = trained().path();
  const auto input = [&](const char* name, const std::vector<std::int64_t>& ids, std::int64_t rows,
                         const std::vector<std::int64_t>& labels) {
    const Shape shape{rows, std::ssize(ids) / rows};
    std::vector<TensorSource> sources;
    sources.push_back(source_of("input_ids", Tensor::from(ids, shape), DType::i64));
    if (!labels.empty()) sources.push_back(source_of("labels", Tensor::from(labels, shape), DType::i64));
    write_safetensors(dir / name, std::move(sources));
  };
  const auto forward = [&](const char* name) {
    return nemocube_in(dir, {"forward", "--model", "straight/LATEST/model", "--logprobs", "--input", name,
                             "--output", "logprobs.safetensors"});
  };
  const auto logprobs = [&](const char* name) {
    const ProcessResult run = forward(name);
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    return SafetensorsFile(dir / "logprobs.safetensors").tensor("logprobs").to_vector();
  };
  input("next", {5, 6, 7, 8, 9, 10}, 2, {});
  input("given", {5, 6, 7, 8, 9, 10}, 2, {6, 7, -100, 9, 10, -100});
  const std::vector<double> values = logprobs("next");
  CHECK(values == logprobs("given"));
  for (std::size_t i = 0; i < 6; ++i) CHECK((values[i] < 0) == (i % 3 < 2));
  CHECK(values[2] == 0);
  input("one", {5, 6}, 2, {});
  const ProcessResult none = forward("one");
  CHECK(none.exit_code == 2);
  CHECK(none.err.find("rows of one token have no next one") != std::string::npos);
}

TEST_CASE("generate: stops at the ids of generation_config.json") {
  const fs::path dir = trained().path();
  const auto ids = [&](const char* model) {
    const ProcessResult run = nemocube_in(
        dir, {"generate", "--model", model, "--json", "--max-new-tokens", "6", "--prompt", "Bees make"});
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    return json_lines(run.out).at(0)["ids"].get<std::vector<std::int64_t>>();
  };
  const auto all = ids("straight/LATEST/model");
  REQUIRE(all.size() == 6);
  fs::copy(dir / "straight" / "LATEST" / "model", dir / "stopping", fs::copy_options::recursive);
  spit(dir / "stopping" / "generation_config.json", cat("{\"eos_token_id\": [1, ", all[0], "]}"));
  CHECK(ids("stopping").empty());
}

TEST_CASE("eval: the loss of the last validation line; every question is answered") {
  const fs::path dir = trained().path();
  const ProcessResult run =
      nemocube_in(dir, {"eval", "recipe.yaml", "--model", "straight/LATEST/model", "--json"});
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const auto lines = json_lines(run.out);
  REQUIRE(lines.size() == 1);
  const Json logged = read_jsonl(dir / "straight" / "validation.jsonl").back();
  CHECK(lines[0]["dataset"] == "default");
  CHECK(lines[0]["val_loss"].get<double>() ==
        doctest::Approx(logged["val_loss"].get<double>()).epsilon(1e-6));
  CHECK(lines[0]["num_label_tokens"] == logged["num_label_tokens"]);
  CHECK(lines[0]["samples"] == 4);
  // With --model the recipe's own folder need not exist.
  const ProcessResult elsewhere =
      nemocube_in(dir, {"eval", "recipe.yaml", "--model", "straight/LATEST/model", "--json", "--set",
                        "model={_target_: from_config, config: gone, initialisation: megatron}"});
  CAPTURE(elsewhere.err);
  CHECK(elsewhere.out == run.out);
  CHECK(lines[0]["questions"] == 4);
  CHECK(lines[0]["squad_version"] == "1.1");
  for (const char* score : {"exact_match", "f1"}) {
    CHECK(lines[0][score].get<double>() >= 0);
    CHECK(lines[0][score].get<double>() <= 100);
  }
}

// A stop id that is every id makes each answer empty: right where there is none, wrong elsewhere.
TEST_CASE("eval: predictions, and what --show says about questions without an answer") {
  const fs::path dir = trained().path();
  fs::copy(dir / "straight" / "LATEST" / "model", dir / "silent", fs::copy_options::recursive);
  Json stops = Json::array();
  for (int id = 0; id < 2048; ++id) stops.push_back(id);
  spit(dir / "silent" / "generation_config.json", dump_json({{"eos_token_id", stops}}));
  const auto row = [](const char* id, const Json& texts, const Json& starts) {
    return dump_json({{"id", id},
                      {"context", "A frog."},
                      {"question", cat("Who is ", id, "?")},
                      {"answers", {{"text", texts}, {"answer_start", starts}}}},
                     -1) +
           "\n";
  };
  spit(dir / "v2.jsonl", row("a", {"frog"}, {2}) + row("b", Json::array(), Json::array()));
  const std::vector<std::string> command{"eval",    "recipe.yaml",
                                         "--model", "silent",
                                         "--show",  "2",
                                         "--set",   "validation_dataset.dataset_name=v2.jsonl",
                                         "--set",   "evaluation.predictions_path=said.json"};
  const ProcessResult run = nemocube_in(dir, command);
  CAPTURE(run.err);
  CAPTURE(run.out);
  REQUIRE(run.exit_code == 0);
  CHECK(read_json_file(dir / "said.json") == Json({{"a", ""}, {"b", ""}}));
  CHECK(run.out.find("exact match 50.00 %, F1 50.00 % over 2 questions (rules of SQuAD 2.0)") !=
        std::string::npos);
  CHECK(run.out.find("Who is a?\n  A: (none)   [expected: frog]") != std::string::npos);
  CHECK(run.out.find("Who is b?\n  A: (none)   [right]") != std::string::npos);
}

TEST_CASE("train: squad_metrics puts the scores of eval into the validation log, the answers into a file") {
  const RunDir dir;
  const ProcessResult run =
      dir.train({"step_scheduler.max_steps=3", "lr_scheduler=null", "evaluation.squad_metrics=true",
                 "evaluation.max_new_tokens=4", "evaluation.predictions_path=said.json"});
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const auto log = read_jsonl(dir / "straight" / "validation.jsonl");
  REQUIRE(log.size() == 1);
  const auto eval =
      json_lines(nemocube_in(dir.path(), {"eval", "recipe.yaml", "--model", "straight/LATEST/model", "--json",
                                          "--set", "evaluation.max_new_tokens=4"})
                     .out);
  REQUIRE(eval.size() == 1);
  for (const char* score : {"exact_match", "f1"}) {
    REQUIRE(log[0].contains(score));
    CHECK(log[0][score].get<double>() == eval[0][score].get<double>());
  }
  // Another set of the same questions, in a model folder whose name a recipe would read otherwise.
  fs::rename(dir / "straight" / "LATEST" / "model", dir / "m$o'd");
  const std::string more =
      "validation_dataset_more={_target_: squad, dataset_name: samples/validation.json, "
      "limit_dataset_samples: 4}";
  const ProcessResult again = nemocube_in(
      dir.path(),
      {"eval", "recipe.yaml", "--model", "m$o'd", "--set", "evaluation.max_new_tokens=4", "--set",
       "evaluation.predictions_path=said.json", "--set", "validation_dataset=null", "--set", more});
  CAPTURE(again.err);
  REQUIRE(again.exit_code == 0);
  CHECK(read_json_file(dir / "said.json").size() == 4);
  CHECK(read_json_file(dir / "said.json") == read_json_file(dir / "said_more.json"));
}

TEST_CASE("train: predictions that nobody makes are named") {
  const RunDir dir;
  const ProcessResult run =
      dir.train({"step_scheduler.max_steps=1", "lr_scheduler=null", "evaluation.predictions_path=said.json"});
  CHECK(run.exit_code == 0);
  CHECK(run.err.find("evaluation.predictions_path is without effect") != std::string::npos);
}

TEST_CASE("train: model and tokenizer may be named by a file") {
  const RunDir dir;
  const ProcessResult run =
      dir.train({"step_scheduler.max_steps=1", "lr_scheduler=null",
                 "model.config.pretrained_model_name_or_path=model/config.json",
                 "tokenizer.pretrained_model_name_or_path=samples/tokenizer/tokenizer.json"});
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
    CHECK(slurp(dir / "straight" / "LATEST" / "model" / file) == slurp(dir / "samples" / "tokenizer" / file));
}

TEST_CASE("train: a pretrained model is saved with the tokenizer that it was trained with") {
  const RunDir dir;
  fs::copy(trained().path() / "straight" / "LATEST" / "model", dir / "pre", fs::copy_options::recursive);
  spit(dir / "pre" / "tokenizer_config.json", "{\"own\": true}");
  spit(dir / "pre" / "merges.txt", "stray");
  spit(dir / "pre" / "generation_config.json", "{\"eos_token_id\": 1}");
  const std::vector<std::string> overrides{
      "step_scheduler.max_steps=1", "lr_scheduler=null",
      "model={_target_: from_pretrained, pretrained_model_name_or_path: pre}",
      "tokenizer.pretrained_model_name_or_path=samples/tokenizer", "evaluation.squad_metrics=true"};
  const ProcessResult run = dir.train(overrides);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const fs::path saved = dir / "straight" / "LATEST" / "model";
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
    CHECK(slurp(saved / file) == slurp(dir / "samples" / "tokenizer" / file));
  CHECK_FALSE(fs::exists(saved / "merges.txt"));
  CHECK(slurp(saved / "generation_config.json") == "{\"eos_token_id\": 1}");

  // Found before the first step, not at the first validation.
  spit(dir / "pre" / "generation_config.json", "{");
  std::vector<std::string> arguments{"train", "--check", "recipe.yaml"};
  for (const std::string& o : overrides) arguments.insert(arguments.end(), {"--set", o});
  const ProcessResult damaged = nemocube_in(dir.path(), arguments);
  CHECK(damaged.exit_code == 2);
  CHECK(damaged.err.find("generation_config.json") != std::string::npos);
}

TEST_CASE("config.json: a command warns of what it says once, however many parts of it need the config") {
  const RunDir dir;
  const std::string warning = make_config_warn(dir / "model");
  const auto warnings = [&](const Words& words) {
    return occurrences(must_run(nemocube_in(dir.path(), words)).err, warning);
  };
  // Data of several sets, answers, and a benchmark, whose rule asks the model for its vocabulary.
  const Words short_run{"--set", "step_scheduler.max_steps=1", "--set", "lr_scheduler=null"},
      answers{"--set", "evaluation.squad_metrics=true", "--set", "evaluation.max_new_tokens=2"},
      benchmark{"--set", "recipe=BenchmarkingRecipeForNextTokenPrediction",
                "--set", "dataset={_target_: mock_iterable_dataset, seq_len: 32}",
                "--set", "packed_sequence.packed_sequence_size=0"};
  for (const Words& more : {answers, benchmark}) {
    CAPTURE(more[1]);
    const Words recipe = plus({"recipe.yaml"}, plus(short_run, more));
    CHECK(warnings(plus({"train", "--check"}, recipe)) == 1);
    CHECK(warnings(plus({"plan", "--ranks", "1"}, recipe)) == 1);
    CHECK(warnings(plus({"train"}, recipe)) == 1);
  }
  CHECK(warnings(plus({"train", "recipe.yaml"}, short_run)) == 1);  // resumed
  make_config_warn(dir / "straight" / "LATEST" / "model");
  CHECK(warnings({"eval", "recipe.yaml", "--model", "straight"}) == 1);
  CHECK(warnings({"inspect", "--recipe", "recipe.yaml"}) == 1);
}

TEST_CASE("inspect: model, samples and schedule") {
  const fs::path dir = trained().path();
  const ProcessResult model = nemocube_in(dir, {"inspect", "--model", "model", "--json"});
  REQUIRE(model.exit_code == 0);
  const Json facts = json_lines(model.out).at(0);
  CHECK(facts["pattern"] == "ME*-");
  std::int64_t elements = 0;
  for (const Json& spec : facts["specs"]) {
    std::int64_t n = 1;
    for (const Json& d : spec["shape"]) n *= d.get<std::int64_t>();
    elements += n;
  }
  // As `train` counts them: the one buffer is the correction bias of the router.
  std::int64_t buffers = 0;
  for (const Json& spec : facts["specs"])
    if (spec["name"].get<std::string>().ends_with("e_score_correction_bias"))
      buffers += spec["shape"][0].get<std::int64_t>();
  CHECK(buffers > 0);
  CHECK(facts["buffer_elements"] == buffers);
  CHECK(facts["parameters"] == elements - buffers);

  const auto rows = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"inspect", "--recipe", "recipe.yaml", "--samples", "3"});
    const ProcessResult run = nemocube_in(dir, more);
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    std::vector<std::string> ids;
    for (const Json& row : json_lines(run.out)) ids.push_back(row["id"]);
    return ids;
  };
  const auto first_ids = [&](const char* file) {
    std::vector<std::string> ids;
    const Json squad = read_json_file(dir / "samples" / file);
    for (const Json& article : squad["data"])
      for (const Json& paragraph : article["paragraphs"])
        for (const Json& question : paragraph["qas"]) ids.push_back(question["id"]);
    ids.resize(3);
    return ids;
  };
  CHECK(rows({}) == first_ids("train.json"));  // not in the packs of the recipe
  CHECK(rows({"--set", "dataset=null"}) == first_ids("validation.json"));
  std::string chats;
  for (const char* id : {"0", "1", "2"})
    chats += cat(R"({"id": ")", id, R"(", "messages": [{"role": "user", "content": "a"},)",
                 R"( {"role": "assistant", "content": "b"}]})", "\n");
  spit(dir / "chats.jsonl", chats);
  CHECK(rows({"--set", "dataset={_target_: messages, path: chats.jsonl, shuffle_seed: 3}"}) ==
        std::vector<std::string>{"0", "1", "2"});

  // Learning rates of the schedule are those that the run logged, a step later.
  const ProcessResult schedule = nemocube_in(
      dir, {"inspect", "--recipe", "recipe.yaml", "--schedule", "--set", "step_scheduler.max_steps=8"});
  REQUIRE(schedule.exit_code == 0);
  std::istringstream in(schedule.out);
  const auto log = read_jsonl(dir / "straight" / "training.jsonl");
  REQUIRE(log.size() == 8);
  std::int64_t n = 0, lines = 0;
  double lr = 0, wd = 0;
  while (in >> n >> lr >> wd) {
    CHECK(n == lines++);
    if (n > 0) CHECK(lr == log[static_cast<std::size_t>(n - 1)]["lr"].get<double>());
    CHECK(wd == 0.1);
  }
  CHECK(lines == 9);
}

TEST_CASE("tokenize: there and back on the sample passages") {
  const TestDir dir;
  std::string text;
  const Json squad = read_json_file(source_dir() / "data" / "samples" / "validation.json");
  for (const Json& article : squad["data"])
    for (const Json& paragraph : article["paragraphs"])
      text += paragraph["context"].get<std::string>() + "\n";
  REQUIRE(text.size() > 1000);
  spit(dir / "text.txt", text);
  const std::string tokenizer = (source_dir() / "data" / "samples" / "tokenizer").string();
  const ProcessResult ids =
      run_process({program(), "tokenize", "--tokenizer", tokenizer, "--input", "text.txt"}, dir.path());
  REQUIRE(ids.exit_code == 0);
  spit(dir / "ids.txt", ids.out);
  const ProcessResult back = run_process(
      {program(), "tokenize", "--tokenizer", tokenizer, "--input", "ids.txt", "--decode"}, dir.path());
  REQUIRE(back.exit_code == 0);
  CHECK(back.out == text);
}

TEST_CASE("tokenize --chat: conversations as text, ids and masks") {
  const TestDir dir;
  std::filesystem::copy(source_dir() / "data" / "samples" / "tokenizer", dir / "tokenizer");
  const std::string line_of_a_turn = "[{{ m.role }}] {{ m.content }}";
  spit(dir / "tokenizer" / "chat_template.jinja",
       "{% for m in messages %}{% if m.role == 'assistant' %}[assistant]{% generation %} {{ m.content }}"
       "{% endgeneration %}{% else %}" +
           line_of_a_turn +
           "{% endif %}{{ '\\n' }}{% endfor %}{{ '[assistant]' if add_generation_prompt }}{{ mood }}\n");
  spit(dir / "chats.jsonl",
       R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}])"
       "\n"
       R"({"messages": [{"role": "user", "content": "Bye"}], "chat_template_kwargs": {"mood": "!"}})"
       "\n");
  const auto tokenize = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments{program(),   "tokenize", "--tokenizer",
                                       "tokenizer", "--chat",   "chats.jsonl"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_process(arguments, dir.path());
  };
  CHECK(tokenize({}).out == "[user] Hi\n[assistant] Hello\n\n[user] Bye\n!\n");
  CHECK(tokenize({"--add-generation-prompt", "--set", "mood=?"}).out ==
        "[user] Hi\n[assistant] Hello\n[assistant]?\n[user] Bye\n[assistant]?\n");
  CHECK(tokenize({"--chat-template", "{{ messages | length }}"}).out == "2\n1\n");
  CHECK(tokenize({"--chat-template", "{{ strftime_now('%d %B %Y %H:%M:%S.%f %s|%z') }}", "--now",
                  "2026-11-30T05:38:19.5+01:00"})
            .out ==
        "30 November 2026 05:38:19.500000 1796013499|\n30 November 2026 05:38:19.500000 1796013499|\n");

  const Tokenizer tokenizer = Tokenizer::load(dir / "tokenizer");
  for (const std::string& option : {std::string("--ids"), std::string("--mask")}) {
    CAPTURE(option);
    const std::string out = tokenize({option}).out;
    const Json first = parse_json(out.substr(0, out.find('\n')), "the first line");
    CHECK(first["text"] == "[user] Hi\n[assistant] Hello\n");
    const auto ids = first["ids"].get<std::vector<std::int64_t>>();
    CHECK(tokenizer.decode(ids, false) == "[user] Hi\n[assistant] Hello\n");
    CHECK(first.contains("mask") == (option == "--mask"));
    if (!first.contains("mask")) continue;
    std::vector<std::int64_t> marked;
    for (std::size_t i = 0; i < ids.size(); ++i)
      if (first["mask"][i] == 1) marked.push_back(ids[i]);
    CHECK(tokenizer.decode(marked, false) == " Hello");
  }
  const ProcessResult bad = tokenize({"--chat-template", "{{ messages.x.y }}"});
  CHECK(bad.exit_code == 2);
  CHECK(bad.err.find(
            "chats.jsonl: line 1: the given chat template, line 1, column 14: a list has no attribute or "
            "key 'x'") != std::string::npos);
  const std::string deep = "mood=" + std::string(60'000, '[') + std::string(60'000, ']');
  CHECK(tokenize({"--set", deep}).err.find("--set mood: nested deeper than 100 levels") != std::string::npos);
  CHECK(run_process({program(), "tokenize", "--tokenizer", "tokenizer"}, dir.path())
            .err.find("want either --input or --chat") != std::string::npos);
}

TEST_CASE("commands: mistakes of the user end with 2 and a message, not with a trace") {
  const RunDir dir;
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"train", "nowhere.yaml"}, "nowhere.yaml"},
      {{"train", "recipe.yaml", "--set", "optimizer.rl=1"}, "rl"},
      {{"train", "recipe.yaml", "--set", "kernels.attention=fast"}, "tiled"},
      {{"generate", "--model", "nowhere", "--prompt", "x"}, "nowhere"},
      {{"convert", "nowhere", "target"}, "nowhere"},
      {{"inspect"}, "--model"},
  };
  for (const auto& [arguments, text] : cases) {
    CAPTURE(text);
    const ProcessResult run = nemocube_in(dir.path(), arguments);
    CAPTURE(run.err);
    CHECK(run.exit_code == 2);
    CHECK((run.err + run.out).find(text) != std::string::npos);
  }
  CHECK_FALSE(fs::exists(dir / "straight"));
}
