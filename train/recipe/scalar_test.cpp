#include "train/recipe/scalar.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

using namespace nemocube::recipe;

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
