#include "data/peft/peft_pattern.h"

#include <doctest/doctest.h>

#include "core/error.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("peft: keys of rank_pattern match the end of a path, behind a dot") {
  const std::string path = "model.layers.11.mixer.q_proj";
  const auto matches = [&](const char* key) { return PeftPattern(key).matches(path); };
  for (const char* key : {"q_proj", "mixer.q_proj", "model.layers.11.mixer.q_proj", "q.proj", "[qv]_proj",
                          "layers\\.1\\d\\.mixer\\..*", "^model.*", ".*", "q_proj$", "k_proj|q_proj"})
    CHECK_MESSAGE(matches(key), key);
  for (const char* key : {"proj", "1.mixer.q_proj", "layers.1.mixer.q_proj", "q_pro", "mixer", "^q_proj",
                          "x.model.layers.11.mixer.q_proj", "model.layers.11.mixer.q_proj.x", "[kv]_proj",
                          "layers\\.1\\.mixer\\..*"})
    CHECK_MESSAGE(!matches(key), key);
}

TEST_CASE("peft: the first pattern that matches counts") {
  PatternValues<int> values;
  values.add("[qk]_proj", 1);
  values.add("q_proj", 2);
  values.add("v_proj", 3);
  CHECK(values.value_of("model.layers.0.mixer.q_proj", 9) == 1);
  CHECK(values.value_of("model.layers.0.mixer.v_proj", 9) == 3);
  CHECK(values.value_of("model.layers.0.mixer.o_proj", 9) == 9);
}

TEST_CASE("peft: expressions that are not supported are refused") {
  for (const char* key : {"a)|(b", "(", "[", "(?P<x>a)", "a**", ""})
    CHECK_MESSAGE(message_of([&] { PeftPattern pattern(key); }) != "no error", key);
  CHECK(message_of([] {
          PeftPattern(std::string(2000, '['));
        }).find("want an expression of 1 to 1000 bytes") == 0);
  // Backtracking without end becomes an error.
  const PeftPattern slow("(a|aa)+");
  CHECK(message_of([&] { slow.matches(std::string(200, 'a') + "!"); }).find("gives up") != std::string::npos);
}
