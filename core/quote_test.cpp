#include "core/quote.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "core/utf8.h"

using namespace nemocube;

TEST_CASE("quoted text is short, of one line and without terminal commands") {
  CHECK(quote("") == "''");
  CHECK(quote("runs/größe \\d") == "'runs/größe \\d'");
  CHECK(quote("a\nb\tc\r") == "'a\\nb\\tc\\r'");
  CHECK(quote("\x1b[31mred\x7f") == "'\\u001b[31mred\\u007f'");
  CHECK(quote(std::string("a\0b", 3)) == "'a\\u0000b'");
  CHECK(quote("\xc2\x9b"
              "31m") == "'\\u009b31m'");            // C1's control sequence introducer
  CHECK(quote("a\xe2\x80\xaez") == "'a\\u202ez'");  // right-to-left override
  CHECK(quote("\xff ok \xe4\xbd") == "'\\xff ok \\xe4\\xbd'");
  CHECK(quote(std::string(200, 'x')) == "'" + std::string(200, 'x') + "'");
  CHECK(quote(std::string(1 << 20, 'x')) == "'" + std::string(200, 'x') + "...' (1048576 bytes)");
  CHECK(excerpt("a b\n") == "a b\\n");
  CHECK(excerpt(std::string(201, 'x')) == std::string(200, 'x') + "... (201 bytes)");
}

TEST_CASE("a cut never splits a character") {
  std::string text = "x";
  while (text.size() < 300) text += "\xe4\xbd\xa0";
  CHECK(quote(text) == "'" + text.substr(0, 199) + "...' (" + std::to_string(text.size()) + " bytes)");
}

TEST_CASE("any bytes give valid UTF-8") {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(random() % 300, ' ');
    for (char& c : bytes) c = static_cast<char>(random() % (round % 2 ? 256 : 40) + (round % 2 ? 0 : 0xC0));
    const std::string text = quote(bytes);
    REQUIRE(is_valid_utf8(text));
    REQUIRE(text.size() <= 6 * bytes.size() + 30);
    REQUIRE(std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; }));
  }
}

TEST_CASE("printable: a message keeps its lines, shows terminal commands, and ends") {
  CHECK(printable("a\n\tb \x1b[1m \xff é") == "a\n\\tb \\u001b[1m \\xff é");
  CHECK(printable_message("1 problem:\n  a\n  b\n") == "1 problem:\n  a\n  b\n");
  CHECK(printable_message("cannot open x\nwarning: all is lost: no") ==
        "cannot open x\\nwarning: all is lost: no");
  CHECK(printable_message("a\n b\x1b[1m") == "a\\n b\\u001b[1m");
  CHECK(printable(quote("a\nb\x1b")) == quote("a\nb\x1b"));
  const std::string path = "/" + std::string(3000, 'd') + "/file";
  CHECK(printable("cannot open " + path + ": no\n") ==
        "cannot open /" + std::string(199, 'd') + "..." + std::string(95, 'd') + "/file (3006 bytes): no\n");
  CHECK(printable("/" + std::string(999, 'd')) == "/" + std::string(999, 'd'));
  CHECK(printable(std::string(65536, 'a')) == std::string(65536, 'a'));
  CHECK(printable(std::string(70'000, 'a')) == std::string(65536, 'a') + "... (70000 bytes)");
}
