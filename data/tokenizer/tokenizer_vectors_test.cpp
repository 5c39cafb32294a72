// Compares with vectors worked out by hand from the definition of byte-pair encoding.
#include <map>
#include <nlohmann/json.hpp>

#include "core/utf8.h"
#include "data/json/json_ref.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/test_support.h"

using namespace nemocube;

namespace {

using tok_test::bpe_document;
using tok_test::golden;
using tok_test::pairs;
using tok_test::tokenizer_of;
using Ids = std::vector<std::int64_t>;
using nlohmann::json;

TEST_CASE("bpe ignore_merges: against the reference vectors") {
  const json vocab = {{".:.:", 0},    {"Ġbelirtilen", 1}, {".", 2},  {":", 3},          {"bel", 4},
                      {"irtilen", 5}, {"Ġ", 6},           {".:", 7}, {"belirtilen", 8}, {"b", 9},
                      {"e", 10},      {"be", 11},         {"l", 12}, {"ir", 13},        {"en", 14},
                      {"irtil", 15},  {"i", 16},          {"r", 17}, {"t", 18},         {"ti", 19},
                      {"irti", 20},   {"n", 21}};
  const json merges = pairs(
      {{".", ":"}, {"b", "e"}, {"be", "l"}, {"i", "r"}, {"t", "i"}, {"ir", "ti"}, {"e", "n"}, {"irti", "l"}});
  json document = bpe_document(vocab, merges);
  for (const bool byte_level : {false, true}) {
    CAPTURE(byte_level);
    if (byte_level) {
      document["pre_tokenizer"] = {
          {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
    }
    const std::string word = byte_level ? " belirtilen" : "Ġbelirtilen";
    document["model"]["ignore_merges"] = true;
    CHECK(tokenizer_of(document).encode(".:.:", false) == Ids{0});
    CHECK(tokenizer_of(document).encode(word, false) == Ids{1});
    document["model"]["ignore_merges"] = false;
    CHECK(tokenizer_of(document).encode(".:.:", false) == Ids{7, 7});
    CHECK(tokenizer_of(document).encode(word, false) == Ids{6, 4, 15, 14});
  }
}

TEST_CASE("bpe merges: lowest rank first, with and without merges") {
  const json vocab = {{"u", 0},     {"n", 1},    {"r", 2},        {"e", 3},         {"l", 4},   {"a", 5},
                      {"t", 6},     {"d", 7},    {"re", 8},       {"at", 9},        {"ed", 10}, {"un", 11},
                      {"ated", 12}, {"rel", 13}, {"related", 14}, {"unrelated", 15}};
  const json merges = pairs({{"r", "e"},
                             {"a", "t"},
                             {"e", "d"},
                             {"u", "n"},
                             {"at", "ed"},
                             {"re", "l"},
                             {"rel", "ated"},
                             {"un", "related"}});
  CHECK(tokenizer_of(bpe_document(vocab, merges)).encode("unrelated", false) == Ids{15});
  CHECK(tokenizer_of(bpe_document(vocab, json::array())).encode("unrelated", false) ==
        Ids{0, 1, 2, 3, 4, 5, 6, 3, 7});
  CHECK(tokenizer_of(bpe_document(vocab, merges)).encode("relun?ated", false) ==
        Ids{13, 11, 12});  // '?' is dropped
}

TEST_CASE("bpe merges: a pair listed twice takes the later rank") {
  const json vocab = {{"a", 0}, {"b", 1}, {"c", 2}, {"ab", 3}, {"bc", 4}};
  const json once = pairs({{"a", "b"}, {"b", "c"}});
  const json twice = pairs({{"a", "b"}, {"b", "c"}, {"a", "b"}});
  CHECK(tokenizer_of(bpe_document(vocab, once)).encode("abc", false) == Ids{3, 2});
  CHECK(tokenizer_of(bpe_document(vocab, twice)).encode("abc", false) == Ids{0, 4});
  const json strings = {"#version: 0.2", "a b", "b c", "a b"};
  CHECK(tokenizer_of(bpe_document(vocab, strings)).encode("abc", false) == Ids{0, 4});
}

TEST_CASE("bpe unknown characters: byte fallback, unknown token, fusing") {
  json document = bpe_document({{"<unk>", 0}, {"a", 1}, {"<0xC3>", 2}, {"<0xA9>", 3}}, json::array());
  json& model = document["model"];
  CHECK(tokenizer_of(document).encode("aéxya", false) == Ids{1, 1});  // neither: dropped
  model["unk_token"] = "<unk>";
  CHECK(tokenizer_of(document).encode("aéxya", false) == Ids{1, 0, 0, 0, 1});
  model["fuse_unk"] = true;
  CHECK(tokenizer_of(document).encode("aéxya", false) == Ids{1, 0, 1});
  model["byte_fallback"] = true;
  CHECK(tokenizer_of(document).encode("aéxya", false) == Ids{1, 2, 3, 0, 1});
  CHECK(tokenizer_of(document).encode("aèa", false) == Ids{1, 0, 1});  // one byte has no token
  const auto spans = tokenizer_of(document).encode_with_offsets("aéxya", false);
  REQUIRE(spans.size() == 5);
  CHECK(spans[1].begin == 1);
  CHECK(spans[2].end == 3);
  CHECK(spans[3].begin == 3);
  CHECK(spans[3].end == 5);
  model["unk_token"] = "<gone>";
  CHECK(tokenizer_of(document).encode("aé", false) == Ids{1, 2, 3});
  CHECK_THROWS_WITH_AS(tokenizer_of(document).encode("x", false), doctest::Contains("<gone>"), Error);
}

TEST_CASE("split then byte level: against the published table of pieces") {
  const std::map<std::string, std::vector<std::string>> table = {
      {"Context: The year 2023's end.",
       {"Context", ":", " The", " year", " ", "2", "0", "2", "3", "'s", " end", "."}},
      {"HelloWorld ABCdef iPhone", {"Hello", "World", " ABCdef", " i", "Phone"}},
      {"a  b   c", {"a", " ", " b", "  ", " c"}},
      {"x\n\n  y", {"x", "\n\n", " ", " y"}},
      {"price: $3.50 / 100%", {"price", ":", " $", "3", ".", "5", "0", " /", " ", "1", "0", "0", "%"}},
      {"naïve café", {"naïve", " café"}},
      {"日本語 テスト", {"日本語", " テスト"}},
      {"foo_bar://x", {"foo", "_bar", "://", "x"}},
      {"can't I'LL", {"can", "'t", " I", "'LL"}},
      {"tab\there  ", {"tab", "\there", "  "}}};
  const Json document = tok_test::read_golden("split/tokenizer.json");
  const std::string file = "split/tokenizer.json";
  const auto splitter = tok::PreTokenizer::load(JsonRef(document["pre_tokenizer"], file, "pre_tokenizer"));
  CHECK(splitter.byte_level());
  for (const auto& [text, want] : table) {
    tok::AlignedText aligned(text, {0, text.size()});
    std::vector<std::string> pieces;
    for (const tok::Range r : splitter.split(aligned))
      pieces.push_back(text.substr(r.begin, r.end - r.begin));
    CHECK(pieces == want);
  }
}

TEST_CASE("added tokens of white space: none where the token before has taken all of it") {
  const auto added = [](const char* content, int id, bool left, bool right) {
    return json{{"content", content}, {"id", id},        {"single_word", false},
                {"lstrip", left},     {"rstrip", right}, {"normalized", false},
                {"special", false}};
  };
  json document = bpe_document({{"a", 0}, {"b", 1}, {"X", 2}, {" ", 3}}, json::array());
  document["added_tokens"] = {added("X", 2, false, true), added(" ", 3, true, false)};
  CHECK(tokenizer_of(document).encode("X a", false) == Ids{2, 0});
  CHECK(tokenizer_of(document).encode("a b", false) == Ids{0, 3, 1});
  CHECK(tokenizer_of(document).encode("X  a", false) == Ids{2, 0});  // the library panics here
  document["added_tokens"] = {added("  ", 4, true, true)};
  CHECK(tokenizer_of(document).encode("a    b", false) == Ids{0, 4, 1});
}

TEST_CASE("tokenizer questions: ids, names, special tokens and their files") {
  const Tokenizer tokenizer = Tokenizer::load(golden("split"));
  CHECK(tokenizer.vocab_size() == 1500);
  CHECK(tokenizer.token_to_id("<s>") == 1);
  CHECK(tokenizer.id_to_token(1) == "<s>");
  CHECK(tokenizer.id_to_token(*tokenizer.token_to_id("Ġthe")) == "Ġthe");
  CHECK_FALSE(tokenizer.token_to_id("no such token").has_value());
  CHECK_THROWS_AS(tokenizer.id_to_token(1500), Error);
  CHECK_THROWS_AS(tokenizer.id_to_token(-1), Error);
  CHECK(tokenizer.is_special(1));
  CHECK_FALSE(tokenizer.is_special(100));
  CHECK_FALSE(tokenizer.is_special(-100));
  CHECK(tokenizer.special_prefix() == Ids{1});
  CHECK(tokenizer.special_suffix().empty());
  CHECK(tokenizer.eos_id() == 4);  // an object with "content"
  CHECK(tokenizer.pad_id() == 0);  // null in tokenizer_config.json
  CHECK(Tokenizer::load(golden("split") / "tokenizer.json").encode("x", true) == tokenizer.encode("x", true));

  const Tokenizer bare = Tokenizer::load(golden("legacy"));
  CHECK(bare.special_prefix().empty());
  CHECK_FALSE(bare.eos_id().has_value());
}

TEST_CASE("tokenizer decoding: ids without a token give nothing, damaged UTF-8 gives U+FFFD") {
  const Tokenizer tokenizer = Tokenizer::load(golden("split"));
  const Ids ids = tokenizer.encode("日", false);
  REQUIRE(ids.size() >= 2);
  CHECK(tokenizer.decode(ids, false) == "日");
  CHECK(tokenizer.decode(Ids{ids[0]}, false) == "\xEF\xBF\xBD");
  CHECK(tokenizer.decode(Ids{-100, 99999}, false).empty());
  CHECK(tokenizer.decode(Ids{}, true).empty());
  StreamDecoder stream(tokenizer, true);
  CHECK(stream.push(1).empty());
  CHECK(stream.push(ids[0]).empty());
  CHECK(stream.finish() == "\xEF\xBF\xBD");
  CHECK(stream.finish().empty());
}

TEST_CASE("utf-8: first invalid byte, and replacement of the longest damaged prefix") {
  const std::vector<std::string> valid = {"", "abc", "é日🙂", "\xF4\x8F\xBF\xBF", std::string("\0", 1)};
  for (const std::string& text : valid) CHECK(is_valid_utf8(text));
  const std::map<std::string, std::size_t> invalid = {{"\x80", 0},
                                                      {"a\xC3", 1},
                                                      {"\xC0\x80", 0},
                                                      {"\xED\xA0\x80", 0},
                                                      {"ab\xE3\x81", 2},
                                                      {"\xF5\x80\x80\x80", 0},
                                                      {"\xF4\x90\x80\x80", 0},
                                                      {"é\xE0\x9F\x80", 2}};
  for (const auto& [text, place] : invalid) CHECK(first_invalid_utf8(text) == place);
  const std::string bad = "\xEF\xBF\xBD";
  CHECK(utf8_lossy("a\xF0\x9F\x99z") == "a" + bad + "z");
  CHECK(utf8_lossy("\xED\xA0\x80") == bad + bad + bad);
  CHECK(utf8_lossy("\xE3\x81") == bad);
  CHECK(utf8_complete_prefix("ab\xF0\x9F\x99") == 2);
  CHECK(utf8_complete_prefix("ab\x99") == 3);
  CHECK_THROWS_WITH_AS(Tokenizer::load(golden("split")).encode("ab\xFFz", false),
                       doctest::Contains("at byte 2"), Error);
}

}  // namespace
