#include "data/datasets/chat_row.h"

#include <doctest/doctest.h>

#include "core/log.h"
#include "data/chat/chat.h"
#include "data/datasets/describe.h"
#include "data/datasets/test_rows.h"

using namespace nemocube;
using testing::sample_tokenizer;

namespace {

const std::string turns =
    "{% for m in messages %}{{ m.role }}:{% if m.reasoning_content %} ({{ m.reasoning_content }}){% endif %} "
    "{{ m.content }}\n{% endfor %}";

Json said(const char* role, const char* content, const char* reasoning = nullptr) {
  Json message{{"role", role}, {"content", content}};
  if (reasoning) message["reasoning_content"] = reasoning;
  return message;
}

Chat talk() {
  Chat chat;
  chat.messages = {said("user", "2 + 2?"), said("assistant", "four", "easy"), said("user", "3 + 3?"),
                   said("assistant", "six", "harder one")};
  return chat;
}

std::string shown(const Chat& chat, const ChatRowOptions& options, const std::string& source = turns) {
  const TokenRow row = chat_row("r", chat, ChatTemplate("t", source), sample_tokenizer(), options);
  return describe_supervision(finish_row(row, {}, 0), sample_tokenizer());
}

}  // namespace

TEST_CASE("chat rows: the assistant's turns are the targets") {
  CHECK(shown(talk(), {}) ==
        "user: 2 + 2?\n⟦assistant: (easy) four\n⟧user: 3 + 3?\n⟦assistant: (harder one) six\n⟧");
  const std::string last = shown(talk(), {.mask_history = true});
  CHECK(last == "user: 2 + 2?\nassistant: (easy) four\nuser: 3 + 3?\n⟦assistant: (harder one) six\n⟧");
  CHECK(chat_row("r", {.messages = {said("user", "a")}}, ChatTemplate("t", turns), sample_tokenizer())
            .label_tokens() == 0);
}

TEST_CASE("chat rows: reasoning is no target, and does not hide what stands in front of it") {
  CHECK(shown(talk(), {.mask_reasoning_content = true}) ==
        "user: 2 + 2?\n⟦assistant:⟧ (easy)⟦ four\n⟧user: 3 + 3?\n⟦assistant:⟧ (harder one)⟦ six\n⟧");
  ChatRowOptions both{.mask_history = true, .mask_reasoning_content = true};
  const std::string begin = "user: 2 + 2?\nassistant: (easy) four\nuser: 3 + 3?\n";
  CHECK(shown(talk(), both) == begin + "⟦assistant:⟧ (harder one)⟦ six\n⟧");
  both.mask_order = MaskOrder::reasoning_first;
  CHECK(shown(talk(), both) == begin + "assistant: (harder one)⟦ six\n⟧");
  Chat other = talk();  // under another name that templates know
  other.messages[3].erase("reasoning_content");
  other.messages[3]["thinking"] = "harder one";
  CHECK(shown(other, {.mask_reasoning_content = true}) == shown(talk(), {.mask_reasoning_content = true}));
  const std::string silent = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
  CHECK(shown(talk(), {.mask_reasoning_content = true}, silent) == shown(talk(), {}, silent));
}

TEST_CASE("chat rows: the last turn is found where a template writes earlier ones in another way") {
  // Reasoning is written in the last turn alone, as many templates do.
  const std::string forgets =
      "{% for m in messages %}{{ m.role }}:{% if m.reasoning_content and loop.last %} ({{ "
      "m.reasoning_content }}){% endif "
      "%} {{ m.content }}\n{% endfor %}";
  CHECK_THROWS_WITH_AS(shown(talk(), {}, forgets),
                       doctest::Contains("the ids of the first 2 messages differ"), Error);
  const std::string begin = "user: 2 + 2?\nassistant: four\nuser: 3 + 3?\n";
  CHECK(shown(talk(), {.mask_history = true}, forgets) == begin + "⟦assistant: (harder one) six\n⟧");
  CHECK(shown(talk(), {.mask_history = true, .mask_reasoning_content = true}, forgets) ==
        begin + "⟦assistant:⟧ (harder one)⟦ six\n⟧");
  // Turns of the assistant that follow one another are one run.
  Chat twice = talk();
  twice.messages.insert(twice.messages.begin() + 3, said("assistant", "well"));
  CHECK(
      shown(twice, {.mask_history = true}) ==
      "user: 2 + 2?\nassistant: (easy) four\nuser: 3 + 3?\n⟦assistant: well\nassistant: (harder one) six\n⟧");
}

TEST_CASE("chat rows: turns of weight 0 are no target, by prefixes and by blocks") {
  Chat weighed = talk();
  weighed.messages[1]["weight"] = 0;
  CHECK(shown(weighed, {}) ==
        "user: 2 + 2?\nassistant: (easy) four\nuser: 3 + 3?\n⟦assistant: (harder one) six\n⟧");
  // The beginning of a turn that is left out need not be found.
  const std::string forgets =
      "{% for m in messages %}{{ m.role }}:{% if m.reasoning_content and loop.last %} ({{ "
      "m.reasoning_content }}){% endif "
      "%} {{ m.content }}\n{% endfor %}";
  CHECK(shown(weighed, {}, forgets) ==
        "user: 2 + 2?\nassistant: four\nuser: 3 + 3?\n⟦assistant: (harder one) six\n⟧");
  const std::string blocks =
      "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }} {% else %}{% generation %}{{ "
      "m.reasoning_content }}:{% "
      "endgeneration %}{% generation %} {{ m.content }}{% endgeneration %} {% endif %}{% endfor %}";
  CHECK(shown(talk(), {}, blocks) == "2 + 2?⟦ easy: four⟧ 3 + 3?⟦ harder one: six⟧");
  CHECK(shown(weighed, {}, blocks) == "2 + 2? easy: four 3 + 3?⟦ harder one: six⟧");
  weighed.messages[1].erase("weight");
  weighed.messages[3]["train"] = false;
  CHECK(shown(weighed, {}, blocks) == "2 + 2?⟦ easy: four⟧ 3 + 3? harder one: six");
  CHECK(shown(weighed, {}) ==
        "user: 2 + 2?\n⟦assistant: (easy) four\n⟧user: 3 + 3?\nassistant: (harder one) six");
  for (const std::string& source : {turns, blocks})
    CHECK(chat_row("r", weighed, ChatTemplate("t", source), sample_tokenizer(), {.mask_history = true})
              .label_tokens() == 0);
  weighed.messages[3] = said("assistant", "six", "harder one");
  weighed.messages[3]["loss_mask"] = 0;
  CHECK(shown(weighed, {}, blocks) == "2 + 2?⟦ easy: four⟧ 3 + 3? harder one: six");
}

TEST_CASE("chat rows: what a generation prompt supplies is no target") {
  // The prompt has a header, and a closed block of reasoning where thinking is off.
  const std::string thinks =
      "{% for m in messages %}{% if m.role == 'assistant' %}<a>\n<think>{{ m.reasoning_content }}</think>{{ "
      "m.content }}</s>{% "
      "else %}<u>\n{{ m.content }}</s>{% endif %}{% endfor %}{% if add_generation_prompt %}<a>\n<think>{% if "
      "enable_thinking is "
      "defined and not enable_thinking %}</think>{% endif %}{% endif %}";
  Chat chat;
  chat.messages = {said("user", "2 + 2?"), said("assistant", "four"), said("user", "3 + 3?"),
                   said("assistant", "six", "hm")};
  CHECK(shown(chat, {}, thinks) ==
        "<u>\n2 + 2?</s>⟦<a>\n<think></think>four</s>⟧<u>\n3 + 3?</s>⟦<a>\n<think>hm</think>six</s>⟧");
  const std::string begin = "<u>\n2 + 2?</s>";
  CHECK(shown(chat, {.mask_generation_prompt = true}, thinks) ==
        begin + "<a>\n<think></think>⟦four</s>⟧<u>\n3 + 3?</s><a>\n<think>⟦hm</think>six</s>⟧");
  CHECK(shown(chat, {.mask_history = true, .mask_generation_prompt = true}, thinks) ==
        begin + "<a>\n<think></think>four</s><u>\n3 + 3?</s><a>\n<think>⟦hm</think>six</s>⟧");
  // A template without a prompt keeps its headers; an answer that repeats the prompt stays a target.
  CHECK(shown(chat, {.mask_generation_prompt = true}) == shown(chat, {}));
  chat.messages[1]["content"] = "</think>";
  CHECK(shown(chat, {.mask_generation_prompt = true}, thinks)
            .starts_with(begin + "<a>\n<think></think>⟦</think></s>⟧"));
}

TEST_CASE("chat rows: without answer_only every token is a target, except by generation blocks") {
  const std::string rewrites = "{{ messages | length }}" + turns;  // could not be told apart by prefixes
  CHECK_THROWS_WITH_AS(shown(talk(), {}, rewrites), doctest::Contains("row 'r': "), Error);
  const std::string all = shown(talk(), {.answer_only = false}, rewrites);
  CHECK(all.starts_with("4⟦user: "));  // the first token has no label
  CHECK(all.ends_with(" six\n⟧"));
  const std::string blocks =
      "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }} {% else %}"
      "{% generation %}{{ m.content }}{% endgeneration %} {% endif %}{% endfor %}";
  CHECK(shown(talk(), {.answer_only = false}, blocks) == shown(talk(), {}, blocks));
}

TEST_CASE("chat rows: reasoning that the template never writes is warned of, once for a template") {
  std::vector<std::string> texts;
  set_log_listener([&](LogLevel, const std::string& text) { texts.push_back(text); });
  const auto warned = [&](const std::string& name, const std::string& source, const Chat& chat) {
    texts.clear();
    for (int i = 0; i < 2; ++i) chat_row("r", chat, ChatTemplate(name, source), sample_tokenizer());
    return texts;
  };
  const std::string silent =
      "{% for m in messages %}thinking reasoning {{ m.role }}: {{ m.content }}\n{% endfor %}";
  const Chat plain{.messages = {said("user", "a"), said("assistant", "b")}};
  CHECK(warned("silent", silent, plain).empty());
  CHECK(
      warned("silent", silent, talk()) ==
      std::vector<std::string>{
          "silent: the template never writes reasoning, and rows have some, first row 'r', messages[1]: the "
          "model does not see this reasoning"});
  CHECK(warned("turns", turns, talk()).empty());
  // Templates that name the key have their reasons, as those that drop the reasoning of earlier turns.
  CHECK(warned("never", "{% for m in messages %}{{ m.content }}{{ m['thinking'] if false }}\n{% endfor %}",
               talk())
            .empty());
  // One that does not name the key.
  CHECK(warned("all keys",
               "{% for m in messages %}{% for k, v in m.items() %}{{ v }}{% endfor %}{% endfor %}", talk())
            .empty());
  set_log_listener({});
}
