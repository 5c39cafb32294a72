// Compares with the texts and generation spans of transformers' apply_chat_template for the same templates
// and conversations (tools/goldens/make_chat_templates.py).
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/chat/chat.h"
#include "data/chat/chat_template.h"
#include "data/json/test_dir.h"
#include "tests/support/paths.h"

using namespace nemocube;

namespace {

const std::filesystem::path goldens = testing::source_dir() / "tests" / "goldens" / "chat";

/// The text of a rendering, or what went wrong.
struct Result {
  std::string text, error;
  std::vector<RenderedChat::Range> generation;
};

Result rendered(const std::string& name, const std::string& source, const Json& input) {
  try {
    ChatTemplate chat_template(name, source,
                               {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"pad_token", "<pad>"}});
    chat_template.set_time({std::chrono::system_clock::from_time_t(1'700'000'000)});
    Chat chat;
    chat.messages = input["messages"];
    if (input.contains("tools")) chat.tools = input["tools"];
    if (input.contains("documents")) chat.documents = input["documents"];
    chat.add_generation_prompt = input.value("add_generation_prompt", false);
    chat.variables = input.value("variables", Json::object());
    RenderedChat result = chat_template.render(chat);
    return {std::move(result.text), "", std::move(result.generation)};
  } catch (const Error& error) {
    return {"", error.what(), {}};
  }
}

void check(const Result& result, const Json& want) {
  if (want.contains("raises")) {
    CHECK_MESSAGE(!result.error.empty(), "want an error like: ", want["raises"].get<std::string>(),
                  ", got: ", result.text);
    return;
  }
  CHECK(result.error == "");
  CHECK(result.text == want["text"].get<std::string>());
  std::vector<RenderedChat::Range> spans;
  for (const Json& span : want.value("generation", Json::array()))
    spans.push_back({span[0].get<std::size_t>(), span[1].get<std::size_t>()});
  CHECK(result.generation == spans);
}

TEST_CASE("chat templates of fourteen families: against transformers") {
  const Json golden = read_json_file(goldens / "families.json");
  CHECK(golden["families"].size() >= 14);
  std::size_t cases = 0;
  for (const auto& [family, wants] : golden["families"].items()) {
    const std::string source = testing::slurp(goldens / (family + ".jinja"));
    for (const auto& [name, want] : wants.items()) {
      CAPTURE(family);
      CAPTURE(name);
      check(rendered(family, source, golden["conversations"][name]), want);
      ++cases;
    }
  }
  CHECK(cases >= 400);
}

TEST_CASE("chat templates: small snippets against transformers") {
  const Json golden = read_json_file(goldens / "torture.json");
  CHECK(golden["snippets"].size() >= 600);
  for (const Json& snippet : golden["snippets"]) {
    const std::string source = snippet["template"];
    CAPTURE(source);
    check(rendered("snippet", source, golden["input"]), snippet);
  }
}

}  // namespace
