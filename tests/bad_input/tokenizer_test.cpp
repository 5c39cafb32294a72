#include <nlohmann/json.hpp>

#include "tests/bad_input/refused.h"
#include "tests/support/paths.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {
namespace fs = std::filesystem;

class TokenizerDir : public TestDir {
 public:
  TokenizerDir() {
    fs::copy(sample_tokenizer(), path() / "tokenizer", fs::copy_options::recursive);
    spit(path() / "input.txt", "hello world\n");
  }
  void refuse(const std::vector<std::string>& parts, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments{"tokenize", "--tokenizer", "tokenizer", "--input", "input.txt"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    check_refused(path(), arguments, parts);
  }
};
}  // namespace

TEST_CASE("bad tokenizer.json: refused with the file and the entry") {
  struct Case {
    std::function<void(Json&)> edit;
    std::vector<std::string> parts;
  };
  const auto model = [](const char* key, const Json& value) {
    return [key, value](Json& j) { j["model"][key] = value; };
  };
  const auto split = [](const char* regex) {
    return [regex](Json& j) {
      j["pre_tokenizer"] = {
          {"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
    };
  };
  const std::vector<Case> cases{
      {model("merges", Json::array({3})), {"merges[0]"}},
      {model("merges", Json::array({"a b c"})), {"merges[0]", "a b c"}},
      {model("merges", Json::array({"abc"})), {"merges[0]", "abc"}},
      {model("merges", Json::array({"qqqq zzzz"})), {"merges[0]", "qqqq", "not in the vocabulary"}},
      {model("merges", "a b"), {"merges", "list"}},
      {model("type", "WordPiece"), {"WordPiece", "BPE"}},
      {model("vocab", Json::array({1})), {"vocab"}},
      {[](Json& j) { j["model"]["vocab"]["a"] = -5; }, {"vocab", "-5"}},
      {[](Json& j) { j["model"]["vocab"]["a"] = "x"; }, {"vocab", "\"a\""}},
      {[](Json& j) {
         j["pre_tokenizer"] = {{"type", "Magic"}};
       },
       {"Magic", "not supported"}},
      {split("(["), {"pre_tokenizer", "(["}},
      {[](Json& j) { j.erase("model"); }, {"model"}},
  };
  const TokenizerDir dir;
  const Json good = read_json_file(dir / "tokenizer" / "tokenizer.json");
  for (const Case& c : cases) {
    CAPTURE(c.parts.front());
    Json json = good;
    c.edit(json);
    spit(dir / "tokenizer" / "tokenizer.json", dump_json(json, -1));
    std::vector<std::string> parts = c.parts;
    parts.emplace_back("tokenizer.json");
    dir.refuse(parts);
  }
  spit(dir / "tokenizer" / "tokenizer.json", "hello");
  dir.refuse({"tokenizer.json", "not valid JSON"});
  fs::remove(dir / "tokenizer" / "tokenizer.json");
  dir.refuse({"holds no tokenizer", "tokenizer.json"});
}

TEST_CASE("bad tokenizer.json: an expression that explodes gives up instead of hanging") {
  const TokenizerDir dir;
  Json json = read_json_file(dir / "tokenizer" / "tokenizer.json");
  json["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "(a+)+$"}}}, {"behavior", "Isolated"}, {"invert", false}};
  spit(dir / "tokenizer" / "tokenizer.json", dump_json(json, -1));
  spit(dir / "input.txt", std::string(40, 'a') + "b\n");
  dir.refuse({"line 1", "(a+)+$", "limit"});
}

TEST_CASE("bad text: tokenize names the line and byte, or the id") {
  const TokenizerDir dir;
  spit(dir / "input.txt", "fine\nbad \xff\xfe here\n");
  dir.refuse({"input.txt: line 2", "not valid UTF-8 at byte 4"});
  for (const auto& [line, part] : std::vector<std::pair<std::string, std::string>>{
           {"1 2 3", "JSON array"},
           {"{\"a\": 1}", "JSON array"},
           {"[\"a\"]", "JSON array"},
           {"[1.5]", "JSON array"},
           {std::string(100'000, '['), "JSON array"},
           {"[99999999]", "99999999 is not in [0, 2000)"},
           {"[-1]", "-1 is not in"},
           {"[9223372036854775808]", "9223372036854775808 is not in"}}) {
    CAPTURE(part);
    spit(dir / "input.txt", "[1]\n" + line + "\n");
    dir.refuse({"input.txt: line 2", part}, {"--decode"});
  }
}

TEST_CASE("bad text: an input that is missing, a directory or unreadable is refused") {
  const TokenizerDir dir;
  const std::vector<std::pair<std::string, std::string>> cases{
      {"nope.txt", "No such file"}, {"tokenizer", "is a directory"}, {"/proc/self/mem", "cannot be read"}};
  for (const auto& [input, part] : cases)
    check_refused(dir.path(), {"tokenize", "--tokenizer", "tokenizer", "--input", input}, {input, part});
}

TEST_CASE("bad prompts and options of generate are refused") {
  const ModelDir dir;
  fs::copy(sample_tokenizer(), dir.path(), fs::copy_options::recursive);
  spit(dir / "none.txt", "");
  const std::vector<std::string> generate{"generate", "--model", "."};
  const auto refuse = [&](const std::vector<std::string>& more, const std::vector<std::string>& parts) {
    CAPTURE(parts.front());
    std::vector<std::string> arguments = generate;
    arguments.insert(arguments.end(), more.begin(), more.end());
    check_refused(dir.path(), arguments, parts);
  };
  refuse({"--prompt", "hello"}, {"token ids up to 1999", "vocab_size is 96"});

  // From here on with a model that has the vocabulary.
  dir.edit_json("config.json", [](Json& j) {
    j["layers_block_type"] = {"mlp"};
    j["vocab_size"] = 2000;
  });
  RawSafetensors weights;
  const auto add = [&](const char* name, const Json& shape, std::size_t count) {
    weights.header[name] = {{"dtype", "F32"},
                            {"shape", shape},
                            {"data_offsets", {weights.data.size(), weights.data.size() + 4 * count}}};
    weights.data.resize(weights.data.size() + 4 * count);
  };
  add("backbone.embeddings.weight", {2000, 32}, 64'000);
  add("backbone.layers.0.norm.weight", {32}, 32);
  add("backbone.layers.0.mixer.up_proj.weight", {48, 32}, 48 * 32);
  add("backbone.layers.0.mixer.down_proj.weight", {32, 48}, 48 * 32);
  add("backbone.norm_f.weight", {32}, 32);
  add("lm_head.weight", {2000, 32}, 64'000);
  weights.write(dir / "model.safetensors");
  const ProcessResult good = run_process(
      {program(), "generate", "--model", ".", "--prompt", "hello", "--max-new-tokens", "2"}, dir.path());
  CHECK(good.exit_code == 0);

  refuse({"--prompt", "\xff\xfe"}, {"not valid UTF-8 at byte 0"});
  refuse({"--prompt", ""}, {"the prompt has no tokens"});
  refuse({"--prompt-file", "nope.txt"}, {"nope.txt", "cannot be opened: No such file"});
  refuse({"--prompt-file", "."}, {"is a directory"});
  refuse({"--prompt-file", "none.txt"}, {"none.txt", "no prompt"});
  spit(dir / "blank.txt", "hello\r\n\r\nhello\r\n");
  refuse({"--prompt-file", "blank.txt"}, {"blank.txt: line 2: the prompt has no tokens"});
  spit(dir / "latin.txt", "hello\ncaf\xe9\n");
  refuse({"--prompt-file", "latin.txt"}, {"latin.txt: line 2", "not valid UTF-8 at byte 3"});
  refuse({"--prompt-file", "/proc/self/mem"}, {"/proc/self/mem", "cannot be read"});
  refuse({}, {"--prompt, --prompt-file or --chat"});
  refuse({"--prompt", "a", "--prompt-file", "b"}, {"--prompt", "excludes"});
  refuse({"--prompt", "a", "--temperature", "-1"}, {"temperature", "-1"});
  refuse({"--prompt", "a", "--temperature", "nan"}, {"temperature", "nan"});
  refuse({"--prompt", "a", "--top-p", "2"}, {"top_p", "2"});
  refuse({"--prompt", "a", "--top-k", "-1"}, {"--top-k", "'-1'"});
  refuse({"--prompt", "a", "--max-new-tokens", "-3"}, {"--max-new-tokens", "'-3'"});
  refuse({"--prompt", "a", "--max-new-tokens", "99999999999999999999"}, {"--max-new-tokens", "2^63 - 1"});
  // Before the prompt appears.
  CHECK(run_process({program(), "generate", "--model", ".", "--prompt", "hello", "--top-p", "2"}, dir.path())
            .out.empty());
  refuse({"--prompt", "a", "--dtype", "i64"}, {"--dtype", "i64", "f32, bf16 or f64"});
  weights.fill("lm_head.weight", std::numeric_limits<float>::quiet_NaN());
  weights.write(dir / "model.safetensors");
  refuse({"--prompt", "hello"}, {"prompt 0", "not finite"});
  refuse({"--prompt", "hello", "--temperature", "1"}, {"prompt 0", "not finite"});
}
