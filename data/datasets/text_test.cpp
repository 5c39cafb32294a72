#include "data/datasets/text.h"

#include <doctest/doctest.h>

using namespace nemocube;

TEST_CASE("text: code points and their bytes") {
  using Offsets = std::vector<std::size_t>;
  CHECK(character_offsets("") == Offsets{0});
  CHECK(character_offsets("ab") == Offsets{0, 1, 2});
  CHECK(character_offsets("aé€😀b") == Offsets{0, 1, 3, 6, 10, 11});
}

TEST_CASE("text: strip takes what Python takes") {
  CHECK(strip("") == "");
  CHECK(strip(" \t\n ") == "");
  CHECK(strip("  a b \n") == "a b");
  CHECK(strip("\u00a0\u3000é\u2028\x1f") == "é");
  CHECK(strip("\u200ba\ufeff") == "\u200ba\ufeff");  // neither is white space
}
