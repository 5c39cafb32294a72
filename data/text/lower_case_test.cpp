#include "data/text/lower_case.h"

#include <doctest/doctest.h>

using namespace nemocube;

TEST_CASE("lower case: against Python") {
  CHECK(to_lower("") == "");
  CHECK(to_lower("ABC xyz 123") == "abc xyz 123");
  CHECK(to_lower("ÀÖØÞßÿŸŁŽ") == "àöøþßÿÿłž");
  CHECK(to_lower("ĲǄǅǆ") == "ĳǆǆǆ");
  CHECK(to_lower("ΆΏΑΩΫ") == "άώαωϋ");
  CHECK(to_lower("ЁЖЯҐӁԯ") == "ёжяґӂԯ");
  CHECK(to_lower("ԱՖ") == "աֆ");
  CHECK(to_lower("ⅧⒶＡ") == "ⅷⓐａ");
  CHECK(to_lower("K\u212bẞ") == "kåß");  // Kelvin sign, Angstrom sign, capital sharp s
  CHECK(to_lower("İI") == "i\u0307i");
  CHECK(to_lower("𐐀") == "𐐨");
  CHECK(to_lower("日本Éé") == "日本éé");
}

TEST_CASE("lower case: sigma at the end of a word") {
  CHECK(to_lower("ΟΔΥΣΣΕΥΣ") == "οδυσσευς");
  CHECK(to_lower("ΣΑΣ ΣΑΣ.") == "σας σας.");
  CHECK(to_lower("Σ") == "σ");
  CHECK(to_lower("Α'Σ'") == "α'ς'");
  CHECK(to_lower("Α'Σ'Α") == "α'σ'α");
  CHECK(to_lower("ΑΣ1") == "ας1");
}
