// The interpreter of chat templates. Input: a template.
#include <nlohmann/json.hpp>

#include "core/utf8.h"
#include "data/chat/chat.h"
#include "data/chat/chat_template.h"
#include "tools/fuzz/fuzz.h"

using namespace nemocube;

namespace {

/// A conversation with what templates read. The variable `nul` holds a byte that templates cannot write
/// themselves.
Chat conversation() {
  Chat chat;
  chat.messages = parse_json(R"([
    {"role": "system", "content": "Be brief. \u00dcber \ud83d\ude42"},
    {"role": "user", "content": [{"type": "text", "text": "Hi <b>"}, {"type": "image"}]},
    {"role": "assistant", "content": "", "reasoning": "a\nb",
     "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1.5, "y": [true, null]}}}]},
    {"role": "tool", "content": "{\"t\": 21}", "tool_call_id": "1", "name": "f"},
    {"role": "assistant", "content": " 21 degrees ", "weight": 0}])",
                             "messages");
  chat.tools = parse_json(R"([{"type": "function", "function": {"name": "f", "description": "d",
    "parameters": {"type": "object", "properties": {"x": {"type": "number", "enum": [1, 2.5]}}, "required": ["x"]}}}])",
                          "tools");
  chat.variables = {
      {"enable_thinking", true}, {"nul", std::string("\0x", 2)}, {"big", 18446744073709551615u}};
  chat.add_generation_prompt = true;
  return chat;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Chat chat = conversation();
  constexpr jinja::Limits limits{
      .steps = 50'000, .memory = 16u << 20, .text_bytes = 1u << 20, .items = 100'000};
  fuzz::allow_refusal([&] {
    ChatTemplate chat_template("template", fuzz::text_of(data, size),
                               {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
    chat_template.set_limits(limits);
    chat_template.set_time({.time = std::chrono::sys_seconds(std::chrono::seconds(1'700'000'000))});
    const RenderedChat rendered = chat_template.render(chat);
    fuzz::want(rendered.text.size() <= limits.text_bytes && is_valid_utf8(rendered.text));
    for (const RenderedChat::Range& range : rendered.generation)
      fuzz::want(range.begin <= range.end && range.end <= rendered.text.size());
  });
  return 0;
}
