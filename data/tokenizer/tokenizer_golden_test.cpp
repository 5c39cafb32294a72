// Compares with the results of the `tokenizers` library for the same files
// (tools/goldens/make_tokenizer_torture.py).
#include <nlohmann/json.hpp>

#include "core/utf8.h"
#include "data/json/json_ref.h"
#include "data/json/test_dir.h"
#include "data/tokenizer/decoder_stream.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/test_support.h"

using namespace nemocube;

namespace {

using tok_test::read_golden;
using Ids = std::vector<std::int64_t>;

const std::vector<std::string> models = {"split", "gpt2", "flags", "legacy", "fallback"};

/// What the library makes of tokenizer.json alone. AutoTokenizer, and this program, also take the token of
/// `padding` as a special token (declared_tokens_test.cpp).
Tokenizer as_the_library_has_it(const std::string& model) {
  nlohmann::json document = read_golden(model + "/tokenizer.json");
  document.erase("padding");
  const testing::TestDir folder;
  testing::spit(folder / "tokenizer.json", document.dump());
  return Tokenizer::load(folder.path());
}

std::size_t characters_before(const std::string& text, std::size_t byte) {
  std::size_t count = 0;
  for (std::size_t pos = 0; pos < byte; pos += utf8_step(text, pos).length) ++count;
  return count;
}

std::string decoded_or_text(const nlohmann::json& decoded, std::size_t i, const std::string& text) {
  const auto found = decoded.find(std::to_string(i));
  return found == decoded.end() ? text : found->get<std::string>();
}

std::string streamed(const Tokenizer& tokenizer, const Ids& ids, bool skip_special) {
  StreamDecoder decoder(tokenizer, skip_special);
  std::string out;
  for (const std::int64_t id : ids) {
    const std::string part = decoder.push(id);
    CHECK(is_valid_utf8(part));
    out += part;
  }
  return out + decoder.finish();
}

TEST_CASE("tokenizer ids and text: against golden files of the tokenizers library") {
  const auto texts = read_golden("texts.json").get<std::vector<std::string>>();
  for (const std::string& model : models) {
    CAPTURE(model);
    const Tokenizer tokenizer = as_the_library_has_it(model);
    const auto expected = read_golden(model + "/expected.json");
    const std::size_t deep = expected["ids_special"].size();
    for (std::size_t i = 0; i < texts.size(); ++i) {
      CAPTURE(i);
      CAPTURE(texts[i]);
      const Ids plain = tokenizer.encode(texts[i], false);
      CHECK(plain == expected["ids"][i].get<Ids>());
      const Ids ids = i < deep ? tokenizer.encode(texts[i], true) : plain;
      if (i < deep) CHECK(ids == expected["ids_special"][i].get<Ids>());
      for (const bool skip : {false, true}) {
        const std::string want = decoded_or_text(expected[skip ? "decoded_skip" : "decoded"], i, texts[i]);
        CHECK(tokenizer.decode(ids, skip) == want);
        CHECK(streamed(tokenizer, ids, skip) == want);
      }
    }
  }
}

TEST_CASE("streamed text: ids in any order, whole and piece by piece, against the tokenizers library") {
  const auto golden = read_golden("decoded.json")["ids"];
  for (const std::string& model : models) {
    CAPTURE(model);
    const Tokenizer tokenizer = as_the_library_has_it(model);
    for (const auto& entry : golden[model]) {
      CAPTURE(entry[0].dump());
      const auto ids = entry[0].get<Ids>();
      for (const bool skip : {false, true}) {
        const auto want = entry[skip ? 2 : 1].get<std::string>();
        CHECK(tokenizer.decode(ids, skip) == want);
        CHECK(streamed(tokenizer, ids, skip) == want);
      }
    }
  }
}

TEST_CASE("decoders: chains of steps against the tokenizers library") {
  const auto decoders = read_golden("decoded.json")["decoders"];
  for (const auto& entry : decoders) {
    const std::string file = "decoded.json";
    const Json spec = entry["spec"];
    CAPTURE(spec.dump());
    const auto decoder = tok::Decoder::load(JsonRef(spec, file, "decoder"));
    for (const auto& item : entry["cases"]) {
      CAPTURE(item[0].dump());
      tok::DecoderStream stream(decoder);
      std::string text;
      for (const auto& token : item[0]) {
        const std::string piece = stream.push(token.get<std::string>());
        CHECK(is_valid_utf8(piece));
        text += piece;
      }
      const std::string rest = stream.finish();
      CHECK(is_valid_utf8(rest));
      CHECK(text + rest == item[1].get<std::string>());
    }
  }
}

TEST_CASE("streamed text: appears early, however long the text") {
  for (const std::string& model : models) {
    CAPTURE(model);
    const Tokenizer tokenizer = Tokenizer::load(tok_test::golden(model));
    const Ids ids = tokenizer.encode("the library of the train and the \xe6\x97\xa5 of it", false);
    StreamDecoder decoder(tokenizer, true);
    std::string text;
    for (const std::int64_t id : ids) text += decoder.push(id);
    CHECK(text.size() + 1 >= (text + decoder.finish()).size());
    // Decoding all ids again for each would take hours here.
    std::size_t size = 0;
    for (int i = 0; i < 5'000; ++i)
      for (const std::int64_t id : ids) size += decoder.push(id).size();
    CHECK(size + decoder.finish().size() >= 5'000 * (text.size() - 1));
  }
}

TEST_CASE("tokenizer offsets: against golden files of the tokenizers library, in whole characters") {
  const auto texts = read_golden("texts.json").get<std::vector<std::string>>();
  for (const std::string model : {"split", "flags"}) {
    CAPTURE(model);
    const Tokenizer tokenizer = as_the_library_has_it(model);
    const auto expected = read_golden(model + "/expected.json")["offsets"];
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(texts[i]);
      const auto spans = tokenizer.encode_with_offsets(texts[i], false);
      REQUIRE(spans.size() == expected[i].size());
      for (std::size_t k = 0; k < spans.size(); ++k) {
        std::size_t begin = spans[k].begin;
        while (begin < texts[i].size() && (static_cast<unsigned char>(texts[i][begin]) & 0xC0) == 0x80)
          --begin;
        CHECK(characters_before(texts[i], begin) == expected[i][k][0].get<std::size_t>());
        CHECK(characters_before(texts[i], spans[k].end) == expected[i][k][1].get<std::size_t>());
      }
    }
  }
}

TEST_CASE("tokenizer offsets: they cover the text in order") {
  const auto texts = read_golden("texts.json").get<std::vector<std::string>>();
  for (const std::string& model : models) {
    CAPTURE(model);
    const Tokenizer tokenizer = Tokenizer::load(tok_test::golden(model));
    for (const std::string& text : texts) {
      CAPTURE(text);
      std::size_t begin = 0, end = 0;
      for (const TokenSpan& span : tokenizer.encode_with_offsets(text, true)) {
        CHECK(span.begin >= begin);
        CHECK(span.end >= end);
        CHECK(span.begin <= span.end);
        CHECK(span.end <= text.size());
        if (model != "fallback" && span.begin < span.end) CHECK(span.begin <= end);  // no gap
        begin = span.begin;
        end = span.end;
      }
      if (model != "fallback") CHECK(end == text.size());
    }
  }
}

TEST_CASE("pre-tokenizers: pieces against golden files of the tokenizers library") {
  const auto document = read_golden("pre_tokenizers.json");
  const auto texts = document["texts"].get<std::vector<std::string>>();
  for (const auto& entry : document["cases"]) {
    const std::string file = "pre_tokenizers.json";
    const Json spec = entry["spec"];
    CAPTURE(spec.dump());
    const auto splitter = tok::PreTokenizer::load(JsonRef(spec, file, "pre_tokenizer"));
    std::vector<std::vector<std::string>> want;
    for (const std::string& text : texts) want.push_back({text});
    for (const auto& item : entry["cases"]) {
      want[item[0].get<std::size_t>()] = item[1].get<std::vector<std::string>>();
    }
    for (std::size_t i = 0; i < texts.size(); ++i) {
      CAPTURE(texts[i]);
      tok::AlignedText text(texts[i], {0, texts[i].size()});
      std::vector<std::string> pieces;
      for (const tok::Range r : splitter.split(text))
        pieces.push_back(texts[i].substr(r.begin, r.end - r.begin));
      CHECK(pieces == want[i]);
    }
  }
}

TEST_CASE("regular expressions: constructs that differ between engines are refused") {
  for (const auto& expression : read_golden("regex_refused.json")) {
    CAPTURE(expression);
    CHECK_THROWS_AS(tok::Regex::oniguruma(expression.get<std::string>()), Error);
  }
}

}  // namespace
