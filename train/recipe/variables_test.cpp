#include "train/recipe/variables.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include "core/error.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using nemocube::testing::message_of;
using namespace nemocube::recipe;

namespace {

std::string expanded(const std::string& text) {
  Value value;
  value.kind = Value::Kind::scalar;
  value.text = text;
  value.quoted = true;
  const auto scalar = resolve_scalar(value, "here");
  return scalar ? scalar->text : "(null)";
}

}  // namespace

TEST_CASE("variables expand, with defaults, in text and alone") {
  ::setenv("NEMOCUBE_TEST_A", "alpha", 1);
  ::setenv("NEMOCUBE_TEST.B", "beta", 1);
  ::unsetenv("NEMOCUBE_TEST_NONE");
  CHECK(expanded("${NEMOCUBE_TEST_A}") == "alpha");
  CHECK(expanded("$NEMOCUBE_TEST_A/x") == "alpha/x");
  CHECK(expanded("a ${ NEMOCUBE_TEST_A } b") == "a alpha b");
  CHECK(expanded("$NEMOCUBE_TEST.B.") == "beta.");
  CHECK(expanded("${oc.env:NEMOCUBE_TEST_A}") == "alpha");
  CHECK(expanded("${oc.env:NEMOCUBE_TEST_NONE, x y}") == "x y");
  CHECK(expanded("${NEMOCUBE_TEST_NONE,}") == "");
  CHECK(expanded("${NEMOCUBE_TEST_NONE,none}") == "(null)");
  CHECK(expanded("a$ $1 $$ ${open") == "a$ $1 $$ ${open");
  CHECK(expanded("$$NEMOCUBE_TEST_A $${x}") == "$NEMOCUBE_TEST_A ${x}");
  CHECK(message_of([] { expanded("${NEMOCUBE_TEST_NONE}"); }) ==
        "here: environment variable 'NEMOCUBE_TEST_NONE' is not set (wanted by ${NEMOCUBE_TEST_NONE})");
  CHECK(message_of([] { expanded("x$NEMOCUBE_TEST_NONE-y"); }) ==
        "here: environment variable 'NEMOCUBE_TEST_NONE' is not set (wanted by $NEMOCUBE_TEST_NONE)");
  for (const char* text : {"$a", "$$a", "$$$a", "${a}", "$", "$$", "a$1", "x$", "${", "a$b$c ${d,e}"})
    CHECK(expanded(escape_variables(text)) == text);
}

TEST_CASE("null has several spellings, and quotes keep them as text, except none") {
  const auto null_of = [](const std::string& yaml) {
    return !resolve_scalar(*parse_yaml(cat("a: ", yaml), "t").find("a"), "t");
  };
  for (const char* text : {"null", "~", "", "none", "None", "'none'", "\"None\"", "NULL"})
    CHECK(null_of(text));
  for (const char* text : {"'null'", "''", "'~'", "no", "0", "NONE"}) CHECK_FALSE(null_of(text));
}

TEST_CASE("text that variables make too long is refused") {
  ::setenv("NEMOCUBE_TEST_LONG", std::string(60'000, 'x').c_str(), 1);
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "${NEMOCUBE_TEST_LONG}";
  CHECK(message_of([&] { expanded(text); }) ==
        "here: more than 1048576 bytes once its variables are expanded");
  ::unsetenv("NEMOCUBE_TEST_LONG");
}
