#include "train/recipe/value.h"

#include <doctest/doctest.h>

#include "core/error.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using nemocube::testing::message_of;
using namespace nemocube::recipe;

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
  CHECK(message_of([&] { apply_override(root, "a.b=[1"); }).starts_with("--set a.b=[1: not YAML"));
}

TEST_CASE("overrides stay within the limits of a recipe") {
  const auto refused = [](const std::string& assignment) {
    Value root;
    return message_of([&] { apply_override(root, assignment); });
  };
  CHECK(refused("x=,") == "--set x=,: not YAML: text that belongs to no value, in the line ','");
  CHECK(refused("x=a\n---\nb") == "--set x=a\\n---\\nb: a second YAML document starts here, want one");
  CHECK(refused("a\x1b[31m=1") ==
        "--set a\\u001b[31m=1: want a key of 1 to 200 printable bytes, found 'a\\u001b[31m'");
  std::string deep = "a";
  for (int i = 1; i < max_depth; ++i) deep += ".a";
  CHECK(refused(deep + "=1") == "no error");
  CHECK(refused(deep + ".a=1").find("nested deeper than 64 levels") != std::string::npos);
  const std::string long_key(1 << 20, 'k');
  for (const std::string& text :
       {long_key, long_key + "=1", cat("x=", long_key, long_key), "x=[" + long_key}) {
    const std::string message = refused(text);
    CHECK(message.size() < 600);
    CHECK(message.find("--set ") == 0);
  }
}
