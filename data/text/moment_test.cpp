#include "data/text/moment.h"

#include <doctest/doctest.h>

#include "tests/support/message_of.h"

using namespace nemocube;

TEST_CASE("moment: written and read back with its zone") {
  for (const char* text : {"2026-11-30T05:38:19.123456+01:00", "1900-01-01T00:00:00.000000+00:00",
                           "2024-02-29T23:59:59.999999-09:30", "1969-12-31T23:59:59.000001+00:09:21",
                           "2199-12-31T23:59:59.999999-12:00"}) {
    CAPTURE(text);
    CHECK(to_string(parse_moment(text)) == text);
  }
  CHECK(to_string(parse_moment("2026-11-30")) == "2026-11-30T00:00:00.000000+00:00");
  CHECK(to_string(parse_moment("2026-11-30 05:38Z")) == "2026-11-30T05:38:00.000000+00:00");
  CHECK(to_string(parse_moment("2026-11-30T05:38:19.5-01:00")) == "2026-11-30T05:38:19.500000-01:00");
  CHECK(parse_moment("2026-11-30T05:38+01:00").time == parse_moment("2026-11-30T04:38").time);
}

TEST_CASE("moment: other texts are refused by name") {
  for (const char* text : {"", "today", "2026-11-31", "2026-13-01", "1899-12-31", "2200-01-01", "2026-1-1",
                           "2026-11-30T", "2026-11-30T24:00", "2026-11-30T05:60", "2026-11-30T05:38:19.",
                           "2026-11-30T05:38+1:00", "2026-11-30T05:38 ", "2026-11-30Z1"}) {
    CAPTURE(text);
    const std::string message = testing::message_of([&] { parse_moment(text); });
    CHECK(message.find("want a moment such as 2026-11-30") != std::string::npos);
    CHECK(message.find(cat("'", text, "'")) != std::string::npos);
  }
}
