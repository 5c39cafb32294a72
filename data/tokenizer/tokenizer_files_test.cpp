// Files that are wrong in one way each, and files damaged at random.
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "data/tokenizer/test_support.h"

using namespace nemocube;

namespace {

using nlohmann::json;
using tok_test::bpe_document;
using tok_test::complaint;
using tok_test::pairs;
using tok_test::TempDirectory;

json small() { return bpe_document({{"a", 0}, {"b", 1}, {"ab", 2}}, pairs({{"a", "b"}})); }

json added(const std::string& content, int id) {
  return {{"content", content}, {"id", id},        {"single_word", false},
          {"lstrip", false},    {"rstrip", false}, {"normalized", false},
          {"special", true}};
}

/// The small file with one place replaced.
std::string changed(const std::string& pointer, const json& value) {
  json document = small();
  document[json::json_pointer(pointer)] = value;
  return complaint(document.dump());
}

TEST_CASE("tokenizer.json that is wrong: the error names file, place and fact") {
  CHECK(complaint(small().dump()).empty());
  struct Case {
    std::string pointer;
    json value;
    std::string text;
  };
  const json split = {
      {"type", "Split"}, {"pattern", {{"Regex", "(a)\\1"}}}, {"behavior", "Isolated"}, {"invert", false}};
  json other_behavior = split;
  other_behavior["pattern"] = {{"String", "x"}};
  other_behavior["behavior"] = "Sideways";
  const json bos = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
  const json cls = {
      {"type", "BertProcessing"}, {"sep", json::array({"a", 0})}, {"cls", json::array({"b", 1})}};
  const std::vector<Case> cases = {
      {"/version", "2.0", "version is \"2.0\""},
      {"/model", nullptr, "has no 'model'"},
      {"/model", json::array(), "model must be an object"},
      {"/model/type", "Unigram", "model.type is \"Unigram\""},
      {"/model/type", "WordPiece", "model.type is \"WordPiece\""},
      {"/model/vocab", nullptr, "model has no 'vocab'"},
      {"/model/vocab", json::array({1}), "model.vocab must be an object"},
      {"/model/vocab/a", "zero", "must be an integer"},
      {"/model/vocab/a", -1, "the id -1"},
      {"/model/vocab/a", 4000000000u, "the id 4000000000"},
      {"/model/vocab/a", 1, "the id 1"},
      {"/model/merges", nullptr, "model has no 'merges'"},
      {"/model/merges", pairs({{"a", "a"}}),
       "model.merges[0] (\"a\", \"a\"): \"aa\" is not in the vocabulary"},
      {"/model/merges", pairs({{"a", "b"}, {"c", "b"}}), "model.merges[1] (\"c\", \"b\"): \"c\" is not"},
      {"/model/merges", pairs({{"a"}}), "model.merges[0] has 1 parts"},
      {"/model/merges", json::array({"ab"}), "model.merges[0] is \"ab\""},
      {"/model/merges", json::array({"a b c"}), "model.merges[0] is \"a b c\""},
      {"/model/merges", json::array({"a b", json::array({"a", "b"})}), "model.merges[1] must be a string"},
      {"/model/dropout", 0.1, "model.dropout is not zero"},
      {"/model/end_of_word_suffix", "</w>", "end_of_word_suffix is not supported"},
      {"/model/continuing_subword_prefix", "##", "continuing_subword_prefix is not supported"},
      {"/model/byte_fallback", 1, "byte_fallback must be true or false"},
      {"/normalizer", {{"type", "Precompiled"}}, "normalizer is of type \"Precompiled\""},
      {"/normalizer",
       {{"type", "Sequence"}, {"normalizers", json::array({json{{"type", "Lowercase"}}})}},
       "normalizers[0] is of type"},
      {"/pre_tokenizer", {{"type", "BertPreTokenizer"}}, "pre_tokenizer is of type \"BertPreTokenizer\""},
      {"/pre_tokenizer", {{"type", "Metaspace"}}, "pre_tokenizer has no 'replacement'"},
      {"/pre_tokenizer",
       {{"type", "Metaspace"}, {"replacement", "__"}},
       "one character as replacement, found \"__\""},
      {"/pre_tokenizer",
       {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "last"}},
       "prepend_scheme is \"last\" (known: always, first, never)"},
      {"/pre_tokenizer",
       {{"type", "Metaspace"}, {"replacement", "_"}, {"add_prefix_space", false}},
       "add_prefix_space: false, which only goes with prepend_scheme \"never\""},
      {"/pre_tokenizer", {{"type", "Punctuation"}, {"behavior", "Sideways"}}, "behavior is \"Sideways\""},
      {"/pre_tokenizer", split, "pre_tokenizer.pattern cannot be used"},
      {"/pre_tokenizer", other_behavior, "pre_tokenizer.behavior is \"Sideways\""},
      {"/post_processor", {{"type", "Magic"}}, "post_processor is of type \"Magic\""},
      {"/post_processor", {{"type", "Sequence"}, {"processors", json::array({cls, cls})}}, "second step"},
      {"/post_processor", {{"type", "TemplateProcessing"}, {"single", json::array({bos})}}, "names \"<s>\""},
      {"/post_processor",
       {{"type", "TemplateProcessing"}, {"single", json::array()}},
       "does not hold the sequence"},
      {"/post_processor",
       {{"type", "BertProcessing"}, {"sep", json::array({"x", 7})}, {"cls", json::array({"b", 1})}},
       "the id 7"},
      {"/decoder", {{"type", "WordPiece"}}, "decoder is of type \"WordPiece\""},
      {"/added_tokens", json::array({added("<s>", 4)}), "which gives 3"},
      {"/added_tokens", json::array({added("ab", 3)}), "vocabulary gives it the id 2"},
      {"/added_tokens", json::array({json{{"content", "x"}}}), "added_tokens[0] has no 'id'"}};
  for (const Case& c : cases) {
    const std::string text = changed(c.pointer, c.value);
    CAPTURE(c.pointer);
    CAPTURE(text);
    CHECK(text.find("tokenizer.json: ") != std::string::npos);
    CHECK(text.find(c.text) != std::string::npos);
  }
  CHECK(changed("/added_tokens", json::array({added("<s>", 3), added("ab", 2)})).empty());
}

TEST_CASE("tokenizer.json nested without end is refused") {
  json spec = {{"type", "Digits"}, {"individual_digits", true}};
  for (int i = 0; i < 1000; ++i)
    spec = {{"type", "Sequence"}, {"pretokenizers", json::array({std::move(spec)})}};
  CHECK(changed("/pre_tokenizer", spec).find("nested deeper than") != std::string::npos);
}

TEST_CASE("tokenizer files that are missing, not JSON or cut off") {
  CHECK_THROWS_WITH_AS(Tokenizer::load("/no/such/directory"), doctest::Contains("/no/such/directory"), Error);
  const TempDirectory directory;
  CHECK_THROWS_WITH_AS(Tokenizer::load(directory.path()), doctest::Contains("tokenizer.json"), Error);
  for (const std::string text : {"", "{", "hello", "[1, 2", "{\"model\": \"\xFF\"}", "\"\\ud800\""}) {
    CAPTURE(text);
    CHECK(complaint(text).find("not valid JSON") != std::string::npos);
  }
  CHECK(complaint("[]").find("must be an object") != std::string::npos);
  const std::string whole = small().dump();
  for (std::size_t size = 0; size < whole.size(); ++size)
    CHECK_FALSE(complaint(whole.substr(0, size)).empty());

  directory.write("tokenizer.json", whole);
  directory.write("tokenizer_config.json", "{\"bos_token\": 5}");
  CHECK_THROWS_WITH_AS(Tokenizer::load(directory.path()), doctest::Contains("bos_token must be a string"),
                       Error);
}

std::string damaged(std::string text, std::mt19937& random) {
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  for (std::size_t edits = 1 + below(4); edits > 0; --edits) {
    const std::size_t at = below(text.size());
    switch (below(4)) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, 1 + below(20));
        break;
      case 2:
        text.insert(at, text.substr(below(text.size()), 1 + below(20)));
        break;
      default:
        text[at] = "{}[]\",:0123456789-.eE\\ntruefalsenull"[below(36)];
        break;
    }
    if (text.empty()) return text;
  }
  return text;
}

TEST_CASE("tokenizer.json damaged at random: an Error or a tokenizer, never a crash") {
  std::mt19937 random(20240607);
  int loaded = 0, refused = 0;
  for (const std::string name : {"flags", "fallback"}) {
    // The file is small, so that random damage often hits something that matters.
    json document = tok_test::read_golden(name + "/tokenizer.json");
    json& model = document["model"];
    model["merges"] = json::array();
    for (auto token = model["vocab"].begin(); token != model["vocab"].end();) {
      token =
          token->get<int>() > 12 && token.key().size() > 2 ? model["vocab"].erase(token) : std::next(token);
    }
    int id = 0;
    for (auto& value : model["vocab"]) value = id++;
    json list = json::array();
    for (json& token : document["added_tokens"]) {
      const auto found = model["vocab"].find(token["content"].get<std::string>());
      token["id"] = found == model["vocab"].end() ? json(id++) : *found;
      if (list.size() < 6) list.push_back(token);
    }
    document["added_tokens"] = list;
    document["post_processor"] = nullptr;
    const std::string whole = document.dump();
    REQUIRE(complaint(whole).empty());
    const TempDirectory directory;
    for (int round = 0; round < 600; ++round) {
      const auto path = directory.write("tokenizer.json", damaged(whole, random));
      try {
        const Tokenizer tokenizer = Tokenizer::load(path);
        const auto ids = tokenizer.encode("The Qa0 Qb1 é日 <t>  12\n", true);
        tokenizer.decode(ids, true);
        ++loaded;
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  CHECK(loaded > 0);
  CHECK(refused > 0);
}

}  // namespace
