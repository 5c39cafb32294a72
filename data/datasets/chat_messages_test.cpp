#include "data/datasets/chat_messages.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/chat/chat.h"
#include "data/datasets/test_rows.h"

using namespace nemocube;

namespace {

Chat chat_of(const std::string& row, ToolArguments arguments = ToolArguments::as_given) {
  const Json json = parse_json(row, "row");
  return read_chat_row(JsonView(json, "f.jsonl", "line 1"), arguments);
}

std::string complaint(const std::string& row) {
  try {
    chat_of(row);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// A row whose second message is an assistant with this tool call.
std::string row_with_call(const std::string& call) {
  return R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null, "tool_calls": [)" +
         call + "]}]}";
}

}  // namespace

TEST_CASE("chat messages: contents become texts, other keys stay") {
  const Chat chat = chat_of(
      R"({"messages": [{"role": "user", "name": "Ann", "content": [{"type": "text", "text": "a"}, "b"]},)"
      R"( {"role": "assistant", "reasoning_content": null}]})");
  CHECK(dump_json(chat.messages, -1) == R"([{"role":"user","name":"Ann","content":"a b"},)"
                                        R"({"role":"assistant","reasoning_content":"","content":""}])");
  CHECK_FALSE(chat.tools);
  CHECK(dump_json(
            chat_of(R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})")
                .messages,
            -1) == R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"}])");
}

TEST_CASE("chat messages: tool calls") {
  const std::string call =
      R"({"function": {"name": "f", "arguments": {"city": "Zürich", "n": 1.0, "on": true}}})";
  const Json given = chat_of(row_with_call(call)).messages[1]["tool_calls"][0];
  CHECK(given["id"] == "call_0");
  CHECK(given["type"] == "function");
  CHECK(given["function"]["arguments"].is_object());
  const Json text = chat_of(row_with_call(call), ToolArguments::text).messages[1]["tool_calls"][0];
  CHECK(text["function"]["arguments"] == R"({"city": "Z\u00fcrich", "n": 1.0, "on": true})");
  const std::string as_text = R"({"id": "x", "function": {"name": "f", "arguments": "{ }"}})";
  for (const ToolArguments arguments : {ToolArguments::as_given, ToolArguments::text})
    CHECK(chat_of(row_with_call(as_text), arguments).messages[1]["tool_calls"][0]["function"]["arguments"] ==
          "{ }");
}

TEST_CASE("chat messages: a tool call may have no arguments") {
  for (const ToolArguments arguments : {ToolArguments::as_given, ToolArguments::text})
    for (const char* function : {R"({"name":"f"})", R"({"name":"f","arguments":null})"})
      CHECK(dump_json(chat_of(row_with_call(cat(R"({"function": )", function, "}")), arguments)
                          .messages[1]["tool_calls"][0]["function"],
                      -1) == function);
}

TEST_CASE("chat messages: a null value is an empty text, whatever else the turn holds") {
  const std::string turns = R"({"conversations": [{"from": "human", "value": null)";
  CHECK(chat_of(turns + "}]}").messages[0]["content"] == "");
  CHECK(chat_of(turns + R"(, "content": "b"}]})").messages[0]["content"] == "");
}

TEST_CASE("chat messages: a space stands between parts, empty ones too") {
  CHECK(
      chat_of(R"({"messages": [{"role": "user", "content": ["", {"type": "text", "text": "a"}, "", "b"]}]})")
          .messages[0]["content"] == " a  b");
}

TEST_CASE("chat messages: tools are a list or its text, and none when empty") {
  const std::string messages = R"("messages": [{"role": "user", "content": "a"}]})";
  CHECK(chat_of(R"({"tools": "[{\"name\": \"f\"}]", )" + messages).tools->at(0)["name"] == "f");
  CHECK(chat_of(R"({"tools": [{"name": "f"}], )" + messages).tools->size() == 1);
  CHECK_FALSE(chat_of(R"({"tools": [], )" + messages).tools);
  CHECK_FALSE(chat_of(R"({"tools": null, )" + messages).tools);
  CHECK_FALSE(chat_of(R"({"tools": "", )" + messages).tools);
  CHECK_FALSE(chat_of(R"({"tools": "null", )" + messages).tools);
  CHECK_FALSE(chat_of(R"({"tools": "[]", )" + messages).tools);
  for (const char* wrong : {"{}", R"("{}")", "1"})
    CHECK(complaint(cat(R"({"tools": )", wrong, ", ", messages))
              .find("'line 1.tools': want a list, or the JSON text") != std::string::npos);
}

TEST_CASE("chat messages: turns of conversations keep their other keys") {
  const Chat chat =
      chat_of(R"({"conversations": [{"from": "human", "value": "a", "name": "Ann"},)"
              R"( {"from": "gpt", "value": "b", "weight": 0, "reasoning_content": "r", "tool_calls": [)"
              R"({"function": {"name": "f"}}]}], "chat_template_kwargs": {"enable_thinking": false}})");
  CHECK(
      dump_json(chat.messages, -1) ==
      R"([{"role":"user","content":"a","name":"Ann"},{"role":"assistant","content":"b","weight":0,)"
      R"("reasoning_content":"r","tool_calls":[{"function":{"name":"f"},"id":"call_0","type":"function"}]}])");
  CHECK(dump_json(chat.variables, -1) == R"({"enable_thinking":false})");
}

TEST_CASE("chat messages: calls and results of ShareGPT") {
  const auto messages = [](const std::string& turns, ToolArguments arguments = ToolArguments::as_given) {
    return dump_json(chat_of(R"({"conversations": [)" + turns + "]}", arguments).messages, -1);
  };
  const std::string ask = R"({"from": "human", "value": "a"}, )";
  const std::string call =
      R"({"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"x\": 1}}"}, )";
  const std::string seen = R"({"from": "observation", "value": "12"})";
  const auto made = [](int number, const char* arguments = R"({"x":1})") {
    return cat(R"({"function":{"name":"f","arguments":)", arguments, R"(},"id":"call_)", number,
               R"(","type":"function"})");
  };
  CHECK(messages(ask + call + seen) ==
        R"([{"role":"user","content":"a"},{"role":"assistant","content":"","tool_calls":[)" + made(0) +
            R"(]},{"role":"tool","content":"12","tool_call_id":"call_0"}])");
  // The text in front of a call, and calls that follow one another, are one message; results take their ids
  // in order.
  const std::string answer = R"({"from": "gpt", "value": "b"}, )";
  CHECK(
      messages(ask + answer + call + call + seen + ", " + call + seen) ==
      R"([{"role":"user","content":"a"},{"role":"assistant","content":"b","tool_calls":[)" + made(0) + "," +
          made(1) +
          R"(]},{"role":"tool","content":"12","tool_call_id":"call_0"},{"role":"assistant","content":"","tool_calls":[)" +
          made(2) + R"(]},{"role":"tool","content":"12","tool_call_id":"call_2"}])");
  CHECK(messages(ask + call + seen + ", " + seen)
            .ends_with(R"("call_0"},{"role":"tool","content":"12","tool_call_id":"result_2"}])"));
  CHECK(messages(ask + R"({"from": "tool_call", "value": [{"name": "f", "arguments": {"x": 1}}]})",
                 ToolArguments::text)
            .ends_with(R"("tool_calls":[)" + made(0, R"("{\"x\": 1}")") + "]}]"));
  CHECK(messages(ask + R"({"from": "tool", "value": "12", "tool_call_id": "z"})")
            .ends_with(R"("tool_call_id":"z"}])"));
  CHECK(complaint(R"({"conversations": [{"from": "function_call", "value": "f x"}]})")
            .starts_with("f.jsonl: 'line 1.conversations[0].value': not valid JSON"));
}

TEST_CASE("chat messages: keys that other programs weigh messages by are warned of once") {
  const std::string row =
      R"({"messages": [{"role": "user", "content": "a", "train": true}, {"role": "assistant", "content": "b", "trainable": 0}]})";
  const Json json = parse_json(row, "row");
  const testing::Warnings warnings;
  for (int i = 0; i < 3; ++i)
    read_chat_row(JsonView(json, "weighed.jsonl", "line 1"), ToolArguments::as_given);
  REQUIRE(warnings.texts.size() == 2);
  CHECK(warnings.texts[0].starts_with(
      "weighed.jsonl: 'line 1.messages[0].train' asks for a target and has no effect"));
  CHECK(warnings.texts[1].starts_with("weighed.jsonl: 'line 1.messages[1].trainable' has no effect"));
}

TEST_CASE("chat messages: errors name the key") {
  const auto says = [](const std::string& row, const std::string& part) {
    CAPTURE(complaint(row));
    CHECK(complaint(row).find(part) != std::string::npos);
  };
  says(R"({"prompt": "a"})", "want a row for data set class messages");
  says(R"({"messages": [{"role": "robot", "content": "a"}]})",
       "messages[0].role': want system, user, assistant or tool");
  says(R"({"conversations": [{"from": "narrator", "value": "a"}]})",
       "conversations[0].from': want assistant, bot, chatgpt, function_call, gpt, human, model, observation, "
       "system, "
       "tool, tool_call, tool_response or user");
  says(R"({"conversations": [{"from": "gpt", "text": "a"}]})",
       "conversations[0].value': want a value, got none");
  says(R"({"messages": null})", "want a row for data set class messages, got one whose \"messages\" is null");
  says(R"({"messages": [{"role": "assistant", "content": "a", "weight": 0.5}]})",
       "messages[0].weight': want 0, 1, true or false, since a turn is a target or none, got 0.5");
  says(R"({"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": []})",
       "chat_template_kwargs': want an object");
  says(R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})", "type': want text");
  says(R"({"messages": [{"role": "tool", "content": "a"}]})", "tool_call_id");
  says(R"({"messages": []})", "line 1.messages': want a message or more, got a list of 0");
  says(R"({"conversations": []})", "line 1.conversations': want a message or more");
  says(row_with_call(R"({"function": {"name": "", "arguments": {}}})"), "want the name of a function");
  says(row_with_call("1"), "tool_calls[0]");
}
