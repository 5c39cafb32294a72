#include "data/datasets/chat_row.h"

#include <doctest/doctest.h>

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
