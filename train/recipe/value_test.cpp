#include "train/recipe/value.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <cmath>

using namespace nemocube;
using namespace nemocube::recipe;

namespace {

std::string message_of(const auto& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string expanded(const std::string& text) {
  Value value;
  value.kind = Value::Kind::scalar;
  value.text = text;
  value.quoted = true;
  const auto scalar = resolve_scalar(value, "here");
  return scalar ? scalar->text : "(null)";
}

}  // namespace

TEST_CASE("numbers are what YAML and Python both mean") {
  CHECK(parse_real("1e-8") == 1e-8);
  CHECK(parse_real("1.0e-8") == 1e-8);
  CHECK(parse_real("1E5") == 1e5);
  CHECK(parse_real("-.5") == -0.5);
  CHECK(parse_real("1.") == 1.0);
  CHECK(parse_real("+3") == 3.0);
  CHECK(parse_real("1_000") == 1000.0);
  CHECK(parse_real("1_000.2_5") == 1000.25);
  CHECK(parse_real(".inf") == HUGE_VAL);
  CHECK(parse_real("-.INF") == -HUGE_VAL);
  CHECK(parse_real("0") == 0.0);
  CHECK(parse_real("0.1") == 0.1);
  for (const char* text :
       {"",     "-",   "+",    ".",   "e5",  "1e",  "1_",    "_1",       "1__0", "1_.0", "0x10", "010",
        "1:30", "nan", ".nan", "1 2", "--1", "+-1", "1e999", "infinite", " 1",   "1 ",   "1f",   "_"})
    CHECK_MESSAGE(!parse_real(text), text);

  CHECK(parse_integer("1_000") == 1000);
  CHECK(parse_integer("1e3") == 1000);
  CHECK(parse_integer("20.0") == 20);
  CHECK(parse_integer("-7") == -7);
  CHECK(parse_integer("+7") == 7);
  CHECK(parse_integer("9223372036854775807") == std::numeric_limits<std::int64_t>::max());
  CHECK(parse_integer("-9223372036854775808") == std::numeric_limits<std::int64_t>::min());
  for (const char* text : {"9223372036854775808", "1e300", "0.1", "2.5", ".inf", "1e16", "012", "abc", "++7"})
    CHECK_MESSAGE(!parse_integer(text), text);
}

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

TEST_CASE("damaged YAML is an error with its line") {
  CHECK(message_of([] { parse_yaml("a: 1\na: 2\n", "r.yaml"); }) ==
        "r.yaml:2: key 'a' occurs twice in its section");
  CHECK(message_of([] { parse_yaml("a: 1\nb: [1, 2\n", "r.yaml"); }).starts_with("r.yaml:"));
  CHECK(message_of([] { parse_yaml("a: 1\nb: [1, 2\n", "r.yaml"); }).find("not YAML") != std::string::npos);
  CHECK(message_of([] { parse_yaml("a: 1\n--- \nb: 1\n", "r.yaml"); }) ==
        "r.yaml: holds 2 YAML documents, want one");
  CHECK(message_of([] { parse_yaml("? [a, b]\n: 1\n", "r.yaml"); }) ==
        "r.yaml:1: a key must be a plain word");
  CHECK(message_of([] { read_yaml("/does/not/exist.yaml"); }) ==
        "/does/not/exist.yaml: cannot open this recipe");
  CHECK(message_of([] { read_yaml("/tmp"); }).find("is a directory") != std::string::npos);
  CHECK(message_of([] {
          parse_yaml(std::string(200, '[') + std::string(200, ']'), "r");
        }).find("deeper than") != std::string::npos);
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    bomb += cat("a", i, ": &a", i, " [");
    for (int k = 0; k < 10; ++k) bomb += cat(k ? ", " : "", "*a", i - 1);
    bomb += "]\n";
  }
  CHECK(message_of([&] { parse_yaml(bomb, "r"); }) == "r: more than 1000000 values");
  CHECK(parse_yaml("", "r").kind == Value::Kind::null);
  CHECK(parse_yaml("# only a comment\n", "r").kind == Value::Kind::null);
}

TEST_CASE("overrides replace, create and append") {
  Value root = parse_yaml("a:\n  b: 1\nlist: [1, {x: 2}]\nempty:\nnothing: none\n", "r");
  apply_override(root, "a.b=2");
  apply_override(root, "a.c.d=[1, 2]");
  apply_override(root, "new.key='5'");
  apply_override(root, "empty.x=1");
  apply_override(root, "nothing.x=1");
  apply_override(root, "list.1.x=3");
  apply_override(root, "list.2=last");
  apply_override(root, "text=a=b");
  apply_override(root, "gone=");
  apply_override(root, "path=runs/x #2");
  apply_override(root, "hash=#2");
  apply_override(root, "quoted='x #2'");
  CHECK(root.find("a")->find("b")->text == "2");
  CHECK(root.find("a")->find("b")->line == 0);
  CHECK(root.find("a")->find("c")->find("d")->items.size() == 2);
  CHECK(root.find("new")->find("key")->quoted);
  CHECK(root.find("empty")->find("x")->text == "1");
  CHECK(root.find("nothing")->find("x")->text == "1");
  CHECK(root.find("list")->items[1].find("x")->text == "3");
  CHECK(root.find("list")->items[2].text == "last");
  CHECK(root.find("text")->text == "a=b");
  CHECK(root.find("gone")->kind == Value::Kind::null);
  CHECK(root.find("path")->text == "runs/x #2");
  CHECK(root.find("hash")->text == "#2");
  CHECK(root.find("quoted")->text == "x #2");
  CHECK(root.find("a")->line == 2);

  CHECK(message_of([&] { apply_override(root, "a.b"); }) == "--set a.b: want key.path=value");
  CHECK(message_of([&] { apply_override(root, "=1"); }) == "--set =1: want key.path=value");
  CHECK(message_of([&] { apply_override(root, "a..b=1"); }) ==
        "--set a..b=1: the key path has an empty part");
  CHECK(message_of([&] { apply_override(root, "a.=1"); }) == "--set a.=1: the key path has an empty part");
  CHECK(message_of([&] { apply_override(root, "a.b.c=1"); }) ==
        "--set a.b.c=1: 'c' is below '2', which is a value, not a section");
  CHECK(message_of([&] { apply_override(root, "list.9=1"); }) ==
        "--set list.9=1: '9' is no index of a list of 3 (0 to 3, the last one appends)");
  CHECK(message_of([&] { apply_override(root, "a.b=[1"); }).starts_with("--set a.b=[1:1: not YAML"));
}

TEST_CASE("edit distance counts insertions, deletions, replacements, swaps") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("abc", "") == 3);
  CHECK(edit_distance("max_step", "max_steps") == 1);
  CHECK(edit_distance("max_setps", "max_steps") == 1);
  CHECK(edit_distance("kitten", "sitting") == 3);
  const std::vector<std::string> words{"max_steps", "num_epochs"};
  CHECK(nearest("max-stesp", words) == "max_steps");
  CHECK(nearest("x", {}) == "");
}
