#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "core/error.h"
#include "core/quote.h"
#include "core/sanitizers.h"
#include "tests/support/message_of.h"
#include "train/recipe/value.h"

using namespace nemocube;
using nemocube::testing::message_of;
using namespace nemocube::recipe;

TEST_CASE("damaged YAML is an error with its line") {
  CHECK(message_of([] { parse_yaml("a: 1\na: 2\n", "r.yaml"); }) ==
        "r.yaml:2: key 'a' occurs twice in its section");
  CHECK(message_of([] { parse_yaml("a: 1\nb: [1, 2\n", "r.yaml"); }).starts_with("r.yaml:"));
  CHECK(message_of([] { parse_yaml("a: 1\nb: [1, 2\n", "r.yaml"); }).find("not YAML") != std::string::npos);
  CHECK(message_of([] { parse_yaml("a: 1\n--- \nb: 1\n", "r.yaml"); }) ==
        "r.yaml:2: a second YAML document starts here, want one");
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
  CHECK(message_of([&] { parse_yaml(bomb, "r"); }) == "r:5: more than 100000 keys and values");
  std::string heavy = cat("big: &big ", std::string(100'000, 'x'), "\nlist:\n");
  for (int i = 0; i < 1000; ++i) heavy += "- *big\n";
  CHECK(message_of([&] { parse_yaml(heavy, "r"); }) == "r:42: more than 4194304 bytes of text");
  CHECK(message_of([] { parse_yaml("a: &a [*a]\n", "r"); }) == "r:1: an alias inside what it stands for");
  CHECK(message_of([] { parse_yaml(",", "r.yaml"); }) ==
        "r.yaml:1: not YAML: text that belongs to no value, in the line ','");
  CHECK(message_of([] { parse_yaml("[1]\n[2]\n", "r.yaml"); }) ==
        "r.yaml:2: not YAML: text that belongs to no value, in the line '[2]'");
  CHECK(message_of([] { parse_yaml("a: \"x\\0y\"\n", "r.yaml"); }) == "r.yaml:1: text with a NUL byte");
  CHECK(message_of([] { parse_yaml("a: 1\n\"\\e[2J\": 2\n", "r.yaml"); }) ==
        "r.yaml:2: want a key of 1 to 200 printable bytes, found '\\u001b[2J'");
  CHECK(message_of([] { parse_yaml(std::string((1 << 20) + 1, ' '), "r.yaml"); }) ==
        "r.yaml: want at most 1048576 bytes of YAML, found 1048577");
  CHECK(parse_yaml("", "r").kind == Value::Kind::null);
  CHECK(parse_yaml("# only a comment\n", "r").kind == Value::Kind::null);
}

TEST_CASE("aliases stand for copies") {
  const Value root = parse_yaml("a: &a {x: 1, y: &y [2, 3]}\nb: *a\nc: [*y, *y]\n", "r");
  CHECK(root.find("b")->find("x")->text == "1");
  CHECK(root.find("b")->find("y")->items.size() == 2);
  CHECK(root.find("c")->items[1].items[1].text == "3");
  CHECK(parse_yaml("---\na: 1\n...\n", "r").find("a")->text == "1");
  CHECK(parse_yaml_value("[1, x]", "here", 7).items[1].line == 7);
}

TEST_CASE("merge keys are refused with their line, unless the key is in quotes") {
  const std::string base = "base: &b {x: 1}\n";
  CHECK(message_of([&] {
          parse_yaml(base + "a:\n  <<: *b\n  y: 2\n", "r");
        }).starts_with("r:3: merge keys (<<) are not supported; want "));
  CHECK(parse_yaml(base + "a: {'<<': *b}\n", "r").find("a")->find("<<")->find("x")->text == "1");
}

TEST_CASE("lines that are indented by tabs are named") {
  for (const char* text :
       {"model:\n\tconfig: x\n", "model:\n  config: x\n\tother: y\n", "a:\n  b:\n  \t- x\n"}) {
    CAPTURE(text);
    const std::string message = message_of([&] { parse_yaml(text, "r"); });
    CHECK(message.starts_with("r:"));
    CHECK(message.ends_with(": not YAML: this line is indented by a tab; YAML wants spaces"));
  }
  CHECK(parse_yaml("a:\t{b: 1}\t# tab\n", "r").find("a")->find("b")->text == "1");
}

TEST_CASE("a section of very many keys takes no quadratic time") {
  std::string text;
  for (int i = 0; i < 25'000; ++i) text += cat("key", i, ": ", i, "\n");
  CHECK(parse_yaml(text, "r").entries.size() == 25'000);
}

/// Runs `work` in a child with 1 GiB of memory beyond what this process has and 30 s of processor time; what
/// is left of the child's stack and heap by then does not matter. Returns the child's status, 0 when `work`
/// returned.
int status_within_limits(const auto& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t bytes = pages * 4096 + (1u << 30);
    const rlimit memory{bytes, bytes};
    if (!has_address_sanitizer()) ::setrlimit(RLIMIT_AS, &memory);
    const rlimit seconds{30, 30};
    ::setrlimit(RLIMIT_CPU, &seconds);
    try {
      work();
      ::_exit(0);
    } catch (...) {
      ::_exit(1);
    }
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

/// Any text is a tree or an Error with a short message.
void parse_or_refuse(const std::string& text) {
  try {
    parse_yaml(text, "r");
  } catch (const Error& error) {
    if (std::string_view(error.what()).size() > 1500) throw;
  }
}

TEST_CASE("hostile text: neither endless time, nor all memory, nor the end of the stack") {
  CHECK(status_within_limits([] { throw 1; }) != 0);
  const auto repeated = [](std::string_view head, std::string_view unit) {
    std::string text(head);
    while (text.size() + unit.size() <= 20'000) text += unit;
    return text;
  };
  for (const char* unit :
       {",",     "[",     "{",    "[[]",   "- ",   "? ",       "&a ",        "&a [", "!a ",  "'",
        "\"",    "\"a\n", "|\n",  "#",     "*a ",  "a\n",      "a: b\n",     "{a: ", "[? ",  ": ",
        "---\n", "...\n", "[a\n", "{'a':", "\xff", "\xfe\xff", "%TAG ! a\n", "-\n",  "<<: ", "- &a *a\n"})
    for (const char* head : {"", "a: ", "a: ["}) {
      CAPTURE(quote(unit));
      CHECK(status_within_limits([&] { parse_or_refuse(repeated(head, unit)); }) == 0);
    }
}

TEST_CASE("damaged recipes: every text is a tree or an error") {
  const std::string recipe =
      "model: &m {_target_: from_config, config: 'x # y'}\nlist: [1, *m, {a: \"b\\n\"}]\ntext: |\n  a\n  b\n"
      "optimizer:\n  betas: !!seq [0.9, 0.95]\n  ? lr\n  : 1e-3\n";
  const std::string alphabet = ",[]{}:-?&*!|>'\"%#@`~ \t\n\r\\a0\x1b\xff\xc3";
  CHECK(status_within_limits([&] {
          std::mt19937 random(11);
          for (int round = 0; round < 3000; ++round) {
            std::string text = recipe;
            for (unsigned edits = 1 + random() % 8; edits > 0; --edits) {
              const std::size_t at = random() % text.size();
              const char c = alphabet[random() % alphabet.size()];
              if (random() % 3 == 0)
                text.erase(at, 1 + random() % 5);
              else if (random() % 2 == 0)
                text.insert(at, 1 + random() % 3, c);
              else
                text[at] = c;
              if (text.empty()) text = ",";
            }
            parse_or_refuse(text);
          }
        }) == 0);
}
