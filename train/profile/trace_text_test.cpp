#include "train/profile/trace_text.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/support/check_trace.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

constexpr std::int64_t second = 1'000'000'000;

std::string file_of(const std::string& events) {
  return "{\"otherData\":{},\"traceEvents\":[" + events.substr(1) + "]}";
}

}  // namespace

TEST_CASE("trace text: names, times on the clock of rank 0, and arguments of each type") {
  // This rank's clock is 5 s behind that of rank 0, and loses 1 ns in 1000.
  const RankClock clock({.time = 10 * second, .offset = 5 * second},
                        {.time = 11 * second, .offset = 5 * second + 1'000'000});
  TraceText text(3, clock, 15 * second);
  std::string lines = text.names("rank 3 (\"host\")", {{0, "compute"}, {1, "collectives"}});
  text.append(lines, {.name = "all \"in\" one\n",
                      .begin = 10 * second + 2'000'000,
                      .duration = 1'000'500,
                      .category = trace::Category::collective,
                      .row = 1,
                      .arguments = {{{"bytes", std::int64_t{1} << 40},
                                     {"group", "dp"},
                                     {"number", std::int64_t{7}},
                                     {"waiting_seconds", 0.00025}}}});
  text.append(lines, {.name = "plain", .begin = 10 * second, .duration = 0, .row = 0});
  CHECK(lines.starts_with(",\n{"));
  const Json trace = parse_json(file_of(lines), "trace");
  const std::vector<TraceEvent> events = checked_events(trace);
  REQUIRE(events.size() == 2);
  const Json& name = trace["traceEvents"][0];
  CHECK(name["name"] == "process_name");
  CHECK(name["args"] == Json{{"name", "rank 3 (\"host\")"}});
  const TraceEvent& all = events[0];
  CHECK(all.name == "all \"in\" one\n");
  CHECK(all.category == "collective");
  CHECK(all.rank == 3);
  CHECK(all.row == 2);
  CHECK(all.begin == 2'002'000);  // 2 ms, of which the clock lost 2 us
  CHECK(all.end == 3'003'501);    // of 1000.5 us it lost 1.0005 us
  const Json arguments{
      {"bytes", std::int64_t{1} << 40}, {"group", "dp"}, {"number", 7}, {"waiting_seconds", 0.00025}};
  CHECK(all.arguments == arguments);
  CHECK(events[1].begin == 0);
  CHECK(events[1].end == 0);
  CHECK(events[1].category == "operation");
  CHECK(events[1].arguments.empty());
}
