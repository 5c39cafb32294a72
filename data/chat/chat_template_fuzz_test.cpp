// Mutates the golden templates. A mutant must be refused with an Error or give a text, within its limits.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "core/utf8.h"
#include "data/chat/chat.h"
#include "data/chat/chat_template.h"
#include "data/json/json.h"
#include "data/json/test_dir.h"
#include "tests/support/paths.h"

using namespace nemocube;

namespace {

using Random = std::mt19937;

std::size_t below(Random& random, std::size_t n) { return random() % n; }

/// Changes one place of a template.
void mutate(Random& random, std::string& source, const std::vector<std::string>& sources) {
  static const std::vector<std::string> pieces{"{{",
                                               "}}",
                                               "{%",
                                               "%}",
                                               "{#",
                                               "#}",
                                               "-",
                                               "+",
                                               "(",
                                               ")",
                                               "[",
                                               "]",
                                               "{",
                                               "}",
                                               "|",
                                               ".",
                                               ",",
                                               ":",
                                               "~",
                                               "'",
                                               "\"",
                                               "\\",
                                               "\n",
                                               " ",
                                               "0",
                                               "-1",
                                               "99999999999",
                                               "1e308",
                                               "not ",
                                               " in ",
                                               " is ",
                                               " if ",
                                               " else ",
                                               "{% endif %}",
                                               "{% endfor %}",
                                               "{% break %}",
                                               "{% raw %}",
                                               "loop",
                                               "loop.last",
                                               "messages",
                                               "none",
                                               "**",
                                               "//",
                                               "%",
                                               "*",
                                               " | list",
                                               " | tojson",
                                               " | length",
                                               " | sort",
                                               "[::-1]",
                                               ".items()",
                                               "namespace(",
                                               "recursive ",
                                               "caller()",
                                               "é",
                                               "\xf0\x9f\x99\x82",
                                               "{% macro x(a) %}",
                                               "{% generation %}",
                                               "range(9999)",
                                               " * 9999"};
  const std::size_t at = below(random, source.size() + 1);
  const std::size_t length = std::min(below(random, 12), source.size() - at);
  switch (below(random, 5)) {
    case 0:
      source.erase(at, length);
      break;
    case 1:
      source.insert(at, pieces[below(random, pieces.size())]);
      break;
    case 2:
      source.replace(at, length, pieces[below(random, pieces.size())]);
      break;
    case 3: {
      const std::string& other = sources[below(random, sources.size())];
      const std::size_t from = below(random, other.size() + 1);
      source.insert(at, other.substr(from, below(random, 60)));
      break;
    }
    default:
      source.insert(at, source.substr(below(random, source.size() + 1), below(random, 40)));
  }
  if (source.size() > 20000) source.resize(20000);
  if (below(random, 50) != 0) source = utf8_lossy(source);
}

TEST_CASE("chat templates: mutants are refused or rendered, within the limits") {
  const std::filesystem::path goldens = testing::source_dir() / "tests" / "goldens" / "chat";
  const Json families = read_json_file(goldens / "families.json"),
             torture = read_json_file(goldens / "torture.json");
  std::vector<std::string> sources;
  for (const auto& [family, unused] : families["families"].items())
    sources.push_back(testing::slurp(goldens / (family + ".jinja")));
  const std::size_t long_ones = sources.size();
  for (const Json& snippet : torture["snippets"]) sources.push_back(snippet["template"]);
  std::vector<const Json*> inputs{&torture["input"]};
  for (const auto& [name, conversation] : families["conversations"].items()) inputs.push_back(&conversation);

  constexpr int cases = 6000;
  jinja::Limits limits;
  limits.steps = 200'000;
  limits.text_bytes = 1 << 20;
  Random random(7);
  int rendered = 0;
  for (int i = 0; i < cases; ++i) {
    std::string source = sources[i % 3 == 0 ? below(random, long_ones) : below(random, sources.size())];
    for (std::size_t n = 1 + below(random, 4); n > 0; --n) mutate(random, source, sources);
    const Json& input = *inputs[below(random, inputs.size())];
    Chat chat;
    chat.messages = input["messages"];
    if (input.contains("tools")) chat.tools = input["tools"];
    chat.variables = input.value("variables", Json::object());
    CAPTURE(i);
    CAPTURE(source);
    try {
      ChatTemplate chat_template("mutant", source);
      chat_template.set_limits(limits);
      const RenderedChat result = chat_template.render(chat);
      CHECK(result.text.size() <= limits.text_bytes);
      CHECK(is_valid_utf8(result.text));
      for (const RenderedChat::Range& range : result.generation) {
        CHECK(range.begin <= range.end);
        CHECK(range.end <= result.text.size());
      }
      ++rendered;
    } catch (const Error& error) {
      CHECK(std::string_view(error.what()).starts_with("mutant"));
    }
  }
  CHECK(rendered > cases / 10);
  CHECK(rendered < cases);
}

}  // namespace
