#include "train/logging/wall_clock.h"

#include <doctest/doctest.h>

using namespace nemocube;
using std::chrono::milliseconds;
using Time = std::chrono::system_clock::time_point;

TEST_CASE("timestamps are UTC with milliseconds") {
  CHECK(utc_timestamp(Time{}) == "1970-01-01T00:00:00.000Z");
  CHECK(utc_timestamp(Time{milliseconds{1'700'000'000'007}}) == "2023-11-14T22:13:20.007Z");
  CHECK(utc_timestamp(Time{milliseconds{951'782'399'999}}) == "2000-02-28T23:59:59.999Z");
  CHECK(utc_timestamp(Time{milliseconds{-1}}) == "1969-12-31T23:59:59.999Z");
}

TEST_CASE("timestamps come back as seconds, and other texts do not") {
  CHECK(seconds_of_timestamp("1970-01-01T00:00:00.000Z") == 0);
  CHECK(*seconds_of_timestamp("2026-08-22T09:05:03.007Z") == doctest::Approx(1787389503.007).epsilon(1e-13));
  CHECK(seconds_of_timestamp("2024-02-29T00:00:00.000Z").has_value());
  for (const char* no :
       {"", "now", "2026-02-30T09:05:03.007Z", "2026-08-22T25:05:03.007Z", "2026-08-22T09:05:03.007Z!"})
    CHECK_FALSE(seconds_of_timestamp(no).has_value());
}
