// Compares ids and masks with those of transformers for the same tokenizers
// (tools/goldens/make_chat_templates.py).
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/chat/chat.h"
#include "data/chat/chat_tokens.h"
#include "data/json/json.h"
#include "tests/support/paths.h"

using namespace nemocube;

namespace {

TEST_CASE("chat ids and masks of generation blocks: against transformers") {
  const std::filesystem::path goldens = testing::source_dir() / "tests" / "goldens";
  const Json golden = read_json_file(goldens / "chat" / "masks.json");
  CHECK(golden["cases"].size() >= 300);
  std::size_t marked = 0;
  for (const Json& want : golden["cases"]) {
    const std::string source = want["template"];
    CAPTURE(source);
    CAPTURE(want["tokenizer"].get<std::string>());
    const Tokenizer tokenizer = Tokenizer::load(goldens / "tokenizer" / want["tokenizer"].get<std::string>());
    Chat chat;
    chat.messages = want["chat"]["messages"];
    const ChatTokens tokens = chat_tokens(ChatTemplate("golden", source), tokenizer, chat);
    CHECK(tokens.ids == want["ids"].get<std::vector<std::int64_t>>());
    std::vector<bool> mask;
    for (const Json& bit : want["mask"]) mask.push_back(bit == 1);
    CHECK(tokens.assistant == mask);
    marked += static_cast<std::size_t>(std::ranges::count(mask, true));
  }
  CHECK(marked > 2000);
}

}  // namespace
