#pragma once
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "data/json/json.h"

/// Traces in the JSON Object Format of the Chrome Trace Event Format.
namespace nemocube::testing {

/// An event with a duration, in nanoseconds.
struct TraceEvent {
  std::string name, category;
  std::int64_t rank = 0, row = 0, begin = 0, end = 0;
  Json arguments = Json::object();

  bool within(const TraceEvent& outer) const {
    return rank == outer.rank && row == outer.row && begin >= outer.begin && end <= outer.end;
  }
};

inline std::int64_t nanoseconds_of(const Json& microseconds) {
  return std::llround(microseconds.get<double>() * 1000);
}

inline void check_arguments(const TraceEvent& event) {
  static const std::set<std::string> integers{"bytes", "number", "microbatch", "chunk",
                                              "stage", "layer",  "step"};
  for (const auto& [key, value] : event.arguments.items()) {
    CAPTURE(key);
    if (integers.contains(key)) {
      CHECK(value.is_number_integer());
      CHECK(value >= 0);
    } else if (key == "group") {
      CHECK(value.is_string());
    } else {
      CHECK(key == "waiting_seconds");
      CHECK(value.is_number());
      CHECK(value >= 0);
    }
  }
}

/// Of one row, in the order of the file, which is that of their begins: each lies within those that are open,
/// or behind them.
inline void check_nesting(const std::vector<TraceEvent>& row) {
  std::vector<std::int64_t> open;  // ends
  std::int64_t begin = 0, wrong = 0;
  for (const TraceEvent& event : row) {
    wrong += event.begin < begin;
    begin = event.begin;
    while (!open.empty() && open.back() <= event.begin) open.pop_back();
    wrong += !open.empty() && event.end > open.back();
    open.push_back(event.end);
  }
  CHECK(wrong == 0);
}

/// Checks the form of a trace, and returns its events with a duration.
inline std::vector<TraceEvent> checked_events(const Json& trace) {
  static const std::set<std::string> categories{"step",       "forward",    "backward", "optimizer",
                                                "operation",  "collective", "pipeline", "data",
                                                "checkpoint", "validation"};
  std::vector<TraceEvent> events;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<TraceEvent>> rows;
  std::set<std::int64_t> named_ranks;
  std::set<std::pair<std::int64_t, std::int64_t>> named_rows;
  REQUIRE(trace.at("traceEvents").is_array());
  REQUIRE(trace.at("otherData").is_object());
  for (const Json& e : trace["traceEvents"]) {
    CAPTURE(e.dump());
    for (const char* key : {"name", "ph"}) REQUIRE(e.at(key).is_string());
    for (const char* key : {"pid", "tid"}) REQUIRE(e.at(key).is_number_integer());
    REQUIRE(e.at("ts").is_number());
    CHECK(e["ts"] >= 0);
    const std::int64_t rank = e["pid"], row = e["tid"];
    if (e["ph"] == "M") {
      if (e["name"] == "process_name") named_ranks.insert(rank);
      if (e["name"] == "thread_name") named_rows.emplace(rank, row);
      if (std::string(e["name"]).ends_with("_name")) CHECK(e.at("args").at("name").is_string());
      continue;
    }
    REQUIRE(e["ph"] == "X");
    REQUIRE(e.at("dur").is_number());
    CHECK(e["dur"] >= 0);
    const std::int64_t begin = nanoseconds_of(e["ts"]);
    TraceEvent event{e["name"],
                     e.at("cat"),
                     rank,
                     row,
                     begin,
                     begin + nanoseconds_of(e["dur"]),
                     e.value("args", Json::object())};
    CHECK(categories.contains(event.category));
    check_arguments(event);
    rows[{rank, row}].push_back(event);
    events.push_back(std::move(event));
  }
  for (const auto& [place, row] : rows) {
    CAPTURE(place.first);
    CAPTURE(place.second);
    CHECK(named_ranks.contains(place.first));
    CHECK(named_rows.contains(place));
    check_nesting(row);
  }
  return events;
}

}  // namespace nemocube::testing
