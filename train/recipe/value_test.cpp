#include "train/recipe/value.h"

#include <doctest/doctest.h>

#include "core/error.h"

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

}  // namespace

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
