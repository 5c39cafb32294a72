// Compares with the results of the `tokenizers` library (tools/goldens/make_tokenizer_pipelines.py): ids,
// offsets, text whole and streamed, normalised text, pieces. NEMOCUBE_TOKENIZER_PIPELINES=FOLDER reads a
// larger set, and prints how much was read.
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/utf8.h"
#include "data/json/json_ref.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/test_support.h"

using namespace nemocube;

namespace {

using Ids = std::vector<std::int64_t>;
using nlohmann::json;
using tok_test::pairs;

std::filesystem::path folder() {
  const char* other = std::getenv("NEMOCUBE_TOKENIZER_PIPELINES");
  return other ? std::filesystem::path(other) : tok_test::golden("pipelines");
}

json read(const std::string& name) {
  std::ifstream in(folder() / name);
  REQUIRE_MESSAGE(in.good(), name);
  return json::parse(in);
}

/// The four digits of the golden files, whose description says how they are made.
std::string sum_of(const std::string& text) {
  std::uint64_t state = 0xCBF29CE484222325u;
  for (const char byte : text) state = (state ^ static_cast<unsigned char>(byte)) * 0x100000001B3u;
  std::array<char, 5> digits{};
  std::snprintf(digits.data(), digits.size(), "%04x", static_cast<unsigned>(state & 0xFFFF));
  return digits.data();
}

std::string sum_at(const json& sums, std::size_t i) { return sums.get<std::string>().substr(4 * i, 4); }

std::string offsets_in_characters(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<std::size_t> before(text.size() + 1, 0);  // characters before each byte
  for (std::size_t at = 0, count = 0; at < text.size(); ++count) {
    const std::size_t end = at + utf8_step(text, at).length;
    while (at < end) before[++at] = count + 1;
  }
  json out = json::array();
  for (const TokenSpan& span : tokenizer.encode_with_library_offsets(text))
    out.push_back(json::array({before[span.begin], before[span.end]}));
  return out.dump();
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

void check_lines(const Tokenizer& tokenizer, const json& golden, const std::vector<std::string>& texts) {
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string& text = texts[i];
    CAPTURE(i);
    CAPTURE(text);
    CHECK(tokenizer.encode(text, false) == golden["ids"][i].get<Ids>());
    CHECK(sum_of(offsets_in_characters(tokenizer, text)) == sum_at(golden["offsets"], i));
    const Ids ids = tokenizer.encode(text, true);
    CHECK(sum_of(json(ids).dump()) == sum_at(golden["special"], i));
    CHECK(sum_of(tokenizer.decode(ids, false)) == sum_at(golden["decoded"], i));
    const auto skipped = golden["skipped"].find(std::to_string(i));
    CHECK(tokenizer.decode(ids, true) ==
          (skipped == golden["skipped"].end() ? text : skipped->get<std::string>()));
    for (const bool skip : {false, true})
      CHECK(streamed(tokenizer, ids, skip) == tokenizer.decode(ids, skip));
  }
}

TEST_CASE("pipelines: ids, offsets and text against the tokenizers library") {
  const auto texts = read("texts.json").get<std::vector<std::string>>();
  const json models = read("models.json");
  for (const std::string kind : {"prepended", "first_whole", "always_split", "never_split", "replaced", "nfc",
                                 "nfkc", "behind_bytes"}) {
    CAPTURE(kind);
    const json golden = read(kind + ".json");
    json document = golden["tokenizer"];
    for (const char* key : {"vocab", "merges"})
      document["model"][key] = models[document["model"][key].get<std::string>()][key];
    const Tokenizer tokenizer = tok_test::tokenizer_of(document);
    check_lines(tokenizer, golden, texts);
    for (const json& entry : golden["random"]) {
      CAPTURE(entry.dump());
      const auto ids = entry[0].get<Ids>();
      for (const bool skip : {false, true}) {
        CHECK(tokenizer.decode(ids, skip) == entry[skip ? 2 : 1].get<std::string>());
        CHECK(streamed(tokenizer, ids, skip) == tokenizer.decode(ids, skip));
      }
    }
    if (std::getenv("NEMOCUBE_TOKENIZER_PIPELINES"))
      MESSAGE(kind << ": " << texts.size() << " lines, " << golden["random"].size() << " lists of ids");
  }
}

TEST_CASE("pipelines: normalised text against the tokenizers library") {
  const auto texts = read("texts.json").get<std::vector<std::string>>();
  const std::string file = "steps.json";
  const json steps = read(file);
  for (const json& entry : steps["normalizers"]) {
    const Json spec = entry["spec"];
    CAPTURE(spec.dump());
    const auto normalizer = tok::Normalizer::load(JsonRef(spec, file, "normalizer"));
    for (std::size_t i = 0; i < texts.size(); ++i) {
      CAPTURE(i);
      CAPTURE(texts[i]);
      CHECK(sum_of(normalizer.apply(texts[i])) == sum_at(entry["sums"], i));
    }
  }
}

TEST_CASE("pipelines: pieces against the tokenizers library") {
  const auto texts = read("texts.json").get<std::vector<std::string>>();
  const std::string file = "steps.json";
  const json steps = read(file);
  for (const json& entry : steps["pre_tokenizers"]) {
    const Json spec = entry["spec"];
    CAPTURE(spec.dump());
    json parts = spec["type"] == "Sequence" ? json(spec["pretokenizers"]) : json::array({spec});
    // What ends with ByteLevel leaves bytes as they are for the model, which would spell them.
    const bool spells = parts.back()["type"] == "ByteLevel";
    if (spells)
      parts.push_back(
          {{"type", "Split"}, {"pattern", {{"Regex", ".\\A"}}}, {"behavior", "Isolated"}, {"invert", false}});
    const Json whole = {{"type", "Sequence"}, {"pretokenizers", parts}};
    const auto splitter = tok::PreTokenizer::load(JsonRef(whole, file, "pre_tokenizer"));
    for (std::size_t i = 0; i < texts.size(); ++i) {
      CAPTURE(i);
      CAPTURE(texts[i]);
      tok::AlignedText text(texts[i], {0, texts[i].size()});
      std::string joined;
      for (const tok::Range piece : splitter.split(text))
        joined.append("\x01").append(text.view().substr(piece.begin, piece.end - piece.begin));
      CHECK(sum_of(joined) == sum_at(entry["sums"], i));
    }
  }
}

TEST_CASE("metaspace: a long line without spaces takes time that grows with its length") {
  // Each round of merging halves the symbols, and all take part. A scan of all symbols for each merge would
  // look at 2^41 of them: the test would not end.
  json vocab = {{"▁", 0}, {"a", 1}};
  std::vector<std::vector<std::string>> merges;
  for (std::string token = "a"; token.size() < 64; token += token) {
    vocab[token + token] = vocab.size();
    merges.push_back({token, token});
  }
  json document = tok_test::bpe_document(vocab, pairs(merges));
  document["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", false}};
  const std::string text(std::size_t{1} << 21, 'a');
  const Ids ids = tok_test::tokenizer_of(document).encode(text, false);
  REQUIRE(ids.size() == 1 + text.size() / 64);
  CHECK(ids.front() == 0);
  CHECK(ids.back() == 7);
}

TEST_CASE("normal forms: what is made of several characters comes from the first of them") {
  const Json spec = {{"type", "NFC"}};
  const std::string file = "tokenizer.json", source = "xe\u0301\u0323y\u0301";
  const auto normalizer = tok::Normalizer::load(JsonRef(spec, file, "normalizer"));
  tok::AlignedText text(source, {0, source.size()});
  normalizer.apply(text);
  CHECK(text.view() == "x\u1eb9\u0301\u00fd");
  CHECK(text.original({1, 4}).begin == 1);
  CHECK(text.original({1, 4}).end == 2);
  CHECK(text.original({6, 8}).begin == 6);
  CHECK(text.original({6, 8}).end == 7);
  const std::string plain = "no change: \u00e9 \u65e5";
  tok::AlignedText same(plain, {0, plain.size()});
  normalizer.apply(same);
  CHECK(same.view().data() == plain.data());  // still a view of the input
}

}  // namespace
