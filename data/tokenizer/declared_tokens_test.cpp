#include "data/tokenizer/declared_tokens.h"

#include <cstdlib>

#include "data/tokenizer/test_support.h"

using namespace nemocube;

namespace {

using nlohmann::ordered_json;
using tok_test::TempDirectory;
using Ids = std::vector<std::int64_t>;

std::map<std::string, std::string> named_tokens(const std::filesystem::path& folder,
                                                const ordered_json& tokenizer) {
  const std::string file = "tokenizer.json";
  const auto named = tok::read_declared_tokens(folder, JsonRef(tokenizer, file, "")).named;
  return {named.begin(), named.end()};
}

// tools/goldens/make_declared_tokens.py, which writes more cases to another file on request.
ordered_json read_cases() {
  const char* other = std::getenv("NEMOCUBE_DECLARED_TOKENS");
  std::ifstream in(other ? std::filesystem::path(other) : tok_test::golden("declared_tokens.json"));
  REQUIRE(in.good());
  return ordered_json::parse(in);
}

TEST_CASE("declared tokens: ids, special tokens and names against golden cases of AutoTokenizer") {
  const ordered_json golden = read_cases();
  for (const ordered_json& one : golden["cases"]) {
    CAPTURE(one["name"].get<std::string>());
    const TempDirectory folder;
    ordered_json document = golden["tokenizer"];
    for (const auto& [file, text] : one["files"].items()) {
      if (file != "tokenizer.json")
        folder.write(file, text.dump());
      else
        document.update(text);
    }
    folder.write("tokenizer.json", document.dump());
    CAPTURE(one["files"].dump());
    const Tokenizer tokenizer = Tokenizer::load(folder.path());
    if (one.contains("refused")) continue;  // read here, as older releases of transformers wrote these
    std::int64_t size = std::ssize(golden["tokenizer"]["model"]["vocab"]);
    for (const auto& [id, token] : one["added"].items()) {
      size = std::max<std::int64_t>(size, std::stoll(id) + 1);
      CHECK(tokenizer.id_to_token(std::stoll(id)) == token[0].get<std::string>());
      CHECK(tokenizer.is_special(std::stoll(id)) == token[1].get<bool>());
    }
    CHECK(tokenizer.vocab_size() == size);
    CHECK(named_tokens(folder.path(), document) == one["named"].get<std::map<std::string, std::string>>());
    const auto id_of = [&](const char* name) -> std::optional<std::int64_t> {
      const auto found = one["named"].find(name);
      if (found == one["named"].end() || found->get<std::string>().empty()) return std::nullopt;
      return tokenizer.token_to_id(found->get<std::string>());
    };
    CHECK(tokenizer.eos_id() == id_of("eos_token"));
    CHECK(tokenizer.pad_id() == id_of("pad_token"));
    for (std::size_t i = 0; i < golden["texts"].size(); ++i) {
      CAPTURE(golden["texts"][i].get<std::string>());
      const Ids ids = tokenizer.encode(golden["texts"][i].get<std::string>(), false);
      CHECK(ids == one["ids"][i].get<Ids>());
      CHECK(tokenizer.decode(ids, true) == one["decoded"][i].get<std::string>());
    }
  }
}

TEST_CASE("declared tokens: messages name file and key") {
  const auto complaint = [](const char* file, const char* text) -> std::string {
    const TempDirectory folder;
    folder.write("tokenizer.json", tok_test::bpe_document({{"a", 0}}, nlohmann::json::array()).dump());
    folder.write(file, text);
    try {
      Tokenizer::load(folder.path());
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  struct Case {
    const char *file, *text, *want;
  };
  for (const auto& [file, text, want] :
       {Case{"tokenizer_config.json", R"({"pad_token": 5})",
             "tokenizer_config.json: pad_token must be a string"},
        {"tokenizer_config.json", R"({"pad_token": {"lstrip": true}})", "pad_token has no 'content'"},
        {"tokenizer_config.json", R"({"additional_special_tokens": "<x>"})",
         "additional_special_tokens must be a list"},
        {"tokenizer_config.json", R"({"additional_special_tokens": [5]})",
         "additional_special_tokens[0] must be a string"},
        {"tokenizer_config.json", R"({"extra_special_tokens": {"image_token": 5}})",
         "extra_special_tokens.image_token must be a string"},
        {"tokenizer_config.json", R"({"added_tokens_decoder": []})",
         "added_tokens_decoder must be an object"},
        {"tokenizer_config.json", R"({"added_tokens_decoder": {"x": {"content": "a"}}})",
         "added_tokens_decoder.x is no token id"},
        {"special_tokens_map.json", R"({"extra_special_tokens": 5})",
         "special_tokens_map.json: extra_special_tokens must be a list"},
        {"special_tokens_map.json", "[]", "special_tokens_map.json: want an object"},
        {"added_tokens.json", R"({"<x>": "5"})", "added_tokens.json: \"<x>\" must be an integer"}}) {
    CAPTURE(text);
    CHECK_MESSAGE(complaint(file, text).find(want) != std::string::npos, complaint(file, text));
  }
}

TEST_CASE("declared tokens: the tokenizer knows what file adds a token") {
  const TempDirectory folder;
  folder.write("tokenizer.json", tok_test::bpe_document({{"a", 0}}, nlohmann::json::array()).dump());
  folder.write("tokenizer_config.json", R"({"pad_token": "<pad>"})");
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  CHECK(tokenizer.declared_in(1) == (folder.path() / "tokenizer_config.json").string() + ": pad_token");
  CHECK(tokenizer.declared_in(0).empty());
}

}  // namespace
