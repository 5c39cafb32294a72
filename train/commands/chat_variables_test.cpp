#include "train/commands/chat_variables.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

using namespace nemocube;

TEST_CASE("chat variables: values are JSON or a text") {
  Json variables = Json::object();
  for (const char* option : {"a=1", "enable_thinking=false", "_b2=x=y", "c=", "d=\"q\""})
    set_variable(variables, option);
  CHECK(dump_json(variables, -1) == R"({"a":1,"enable_thinking":false,"_b2":"x=y","c":"","d":"q"})");
}

TEST_CASE("chat variables: names that cannot be are refused") {
  const auto says = [](const std::string& option) -> std::string {
    Json variables = Json::object();
    try {
      set_variable(variables, option);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(says("a") == "--set: want NAME=VALUE, got 'a'");
  CHECK(says("=1") == "--set: want NAME=VALUE, got '=1'");
  for (const char* name : {"messages", "tools", "documents", "add_generation_prompt"})
    CHECK(says(cat(name, "=[]")) == cat("--set: ", name, " comes from the conversation; want another name"));
  for (const char* name : {"1a", "a b", "a.b", "a-b", "größe"})
    CHECK(says(cat(name, "=1")) ==
          cat("--set: want the name of a variable, of letters, digits and _, got '", name, "'"));
  CHECK(says("a=b\xff") == "--set: not valid UTF-8 at byte 4");
}

TEST_CASE("chat variables: --now is the present moment, or the one that is given") {
  CHECK(to_string(moment_of_option("2026-11-30T05:38+01:00")) == "2026-11-30T05:38:00.000000+01:00");
  CHECK(moment_of_option("").time > parse_moment("2026-11-01").time);
  CHECK_THROWS_WITH_AS(moment_of_option("today"), doctest::Contains("--now: want a moment such as "), Error);
}

TEST_CASE("chat variables: a text that is not UTF-8 is refused with its byte") {
  CHECK_NOTHROW(check_utf8("--system", "grün"));
  CHECK_THROWS_WITH_AS(check_utf8("--system", "gr\xfcn"), "--system: not valid UTF-8 at byte 3", Error);
}
