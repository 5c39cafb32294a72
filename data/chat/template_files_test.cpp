#include "data/chat/template_files.h"

#include <doctest/doctest.h>

#include "data/chat/chat_file.h"
#include "data/chat/chat_tokens.h"
#include "data/json/test_dir.h"
#include "tests/support/paths.h"

using namespace nemocube;

namespace {

using testing::spit;
using testing::TestDir;

std::string rendered(const TestDir& dir, const std::optional<std::string>& wanted = std::nullopt,
                     bool tools = false) {
  Chat chat;
  chat.messages = Json::parse(R"([{"role": "user", "content": "Hi"}])");
  return load_chat_template(dir.path(), wanted, tools).render(chat).text;
}

template <class Function>
std::string complaint(Function&& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("chat template files: where transformers looks") {
  const TestDir dir;
  CHECK(complaint([&] { rendered(dir); }).find("has no chat template") != std::string::npos);
  spit(dir / "chat_template.json", R"({"chat_template": "processor"})");
  CHECK(complaint([&] { rendered(dir); }).find("belongs to a processor") != std::string::npos);
  spit(dir / "tokenizer_config.json",
       R"({"chat_template": "one {{ eos_token }}", "eos_token": {"content": "</s>"}})");
  CHECK(rendered(dir) == "one </s>");
  spit(dir / "special_tokens_map.json",
       R"({"eos_token": "<new>", "bos_token": "<s>", "image_token": "<i>"})");
  CHECK(rendered(dir, "{{ bos_token }}{{ eos_token }}{{ image_token }}") == "<s><new><i>");
  spit(dir / "tokenizer_config.json",
       R"({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]})");
  CHECK(rendered(dir) == "d");
  CHECK(rendered(dir, std::nullopt, true) == "t");
  CHECK(rendered(dir, "tool_use") == "t");
  spit(dir / "tokenizer_config.json", R"({"chat_template": {"default": "o", "tool_use": "u"}})");
  CHECK(rendered(dir) == "o");
  CHECK(rendered(dir, "tool_use") == "u");
  spit(dir / "chat_template.jinja", "file\n");
  CHECK(rendered(dir) == "file");
  CHECK(rendered(dir, std::nullopt, true) == "file");
  std::filesystem::create_directory(dir / "additional_chat_templates");
  spit(dir / "additional_chat_templates" / "rag.jinja", "documents");
  CHECK(rendered(dir, "rag") == "documents");
  std::filesystem::remove(dir / "chat_template.jinja");
  CHECK(complaint([&] { rendered(dir); }).find("none with the name default; want one of rag") !=
        std::string::npos);
  CHECK(complaint([&] { rendered(dir, "nope"); }).find("(rag), got 'nope'") != std::string::npos);
  spit(dir / "special_tokens_map.json", "[]");
  CHECK(complaint([&] { rendered(dir, "rag"); }).find("special_tokens_map.json: want an object") !=
        std::string::npos);
}

TEST_CASE("chat template files: a given file holds Jinja or JSON") {
  const TestDir dir;
  spit(dir / "a.jinja", "{% set x = 1 %}{{ x }}");
  spit(dir / "a.json", R"( {"chat_template": "from json"})");
  spit(dir / "bad.json", R"({"template": "x"})");
  CHECK(rendered(dir, (dir / "a.jinja").string()) == "1");
  CHECK(rendered(dir, (dir / "a.json").string()) == "from json");
  CHECK(complaint([&] { rendered(dir, (dir / "bad.json").string()); }).find("chat_template") !=
        std::string::npos);
  spit(dir / "tokenizer_config.json", R"({"chat_template": 5})");
  CHECK(complaint([&] {
          rendered(dir);
        }).find("want a text, a list of {name, template}, or an object with templates by name, got 5") !=
        std::string::npos);
}

TEST_CASE("chat files: the forms of conversations") {
  const TestDir dir;
  const std::string hi = R"({"role": "user", "content": "Hi"})";
  spit(dir / "messages.json", "[" + hi + ", " + hi + "]");
  CHECK(read_chats(dir / "messages.json").size() == 1);
  CHECK(read_chats(dir / "messages.json")[0].chat.messages.size() == 2);
  spit(dir / "lists.json", "[[" + hi + "], [" + hi + "]]");
  CHECK(read_chats(dir / "lists.json").size() == 2);
  spit(dir / "rows.jsonl", R"({"messages": [)" + hi +
                               R"(], "tools": "[{\"name\": \"f\"}]", "add_generation_prompt": true,)" +
                               R"("chat_template_kwargs": {"thinking": false}})" + "\n[" + hi + "]\n");
  const auto chats = read_chats(dir / "rows.jsonl");
  REQUIRE(chats.size() == 2);
  CHECK(chats[0].chat.tools->dump() == R"([{"name":"f"}])");
  CHECK(chats[0].chat.add_generation_prompt);
  CHECK(chats[0].chat.variables.dump() == R"({"thinking":false})");
  CHECK(!chats[1].chat.tools.has_value());
  CHECK(chats[1].place.ends_with("rows.jsonl: line 2"));
  spit(dir / "bad.jsonl", "[" + hi + "]\n{\"text\": 1}\n");
  CHECK(complaint([&] { read_chats(dir / "bad.jsonl"); }).find("'line 2': want a conversation") !=
        std::string::npos);
}

TEST_CASE("chat tokens: without generation blocks by the renderings of shorter conversations") {
  const std::filesystem::path golden = testing::source_dir() / "tests" / "goldens" / "tokenizer" / "gpt2";
  const Tokenizer tokenizer = Tokenizer::load(golden);
  Chat chat;
  chat.messages = Json::parse(R"([{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"},
                                  {"role": "user", "content": "three"}, {"role": "assistant", "content": "four"}])");
  const std::string plain = "{% for m in messages %}<{{ m.role }}>\n{{ m.content }}\n{% endfor %}";
  const ChatTokens tokens = chat_tokens(ChatTemplate("plain", plain), tokenizer, chat);
  CHECK(tokens.ids ==
        tokenizer.encode("<user>\none\n<assistant>\ntwo\n<user>\nthree\n<assistant>\nfour\n", false));
  std::vector<std::int64_t> marked;
  for (std::size_t i = 0; i < tokens.ids.size(); ++i)
    if (tokens.assistant[i]) marked.push_back(tokens.ids[i]);
  CHECK(tokenizer.decode(marked, false) ==
        "<assistant>\ntwo\n<assistant>\nfour\n");  // with what stands in front
  CHECK(!tokens.assistant[0]);

  const std::string counted = "{{ messages | length }}" + plain;
  CHECK(complaint([&] { chat_tokens(ChatTemplate("counted", counted), tokenizer, chat); })
            .find("counted: the ids of the first 1 messages differ from the beginning of the whole "
                  "conversation's ids at "
                  "token 0") == 0);
}

}  // namespace
