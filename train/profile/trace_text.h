#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "core/trace.h"
#include "parallel/comm/rank_clock.h"

namespace nemocube {

/// The events of one rank as text of a trace in the JSON Object Format of the Chrome Trace Event Format,
/// which ui.perfetto.dev and chrome://tracing read. Each event begins with ",\n".
///
///   pid   the rank; tid the row (core/trace.h) plus 1, since readers take thread 0 for an idle thread
///   ts    microseconds of the clock of rank 0 since `origin`; dur microseconds
///   ph    "X" for an event, "M" for the names of processes and threads
/// Source: "Trace Event Format", Google, 2016.
class TraceText {
 public:
  /// `origin`: nanoseconds of the clock of rank 0.
  TraceText(int rank, const RankClock& clock, std::int64_t origin)
      : rank_(rank), clock_(clock), origin_(origin) {}

  /// Names of the process and of its rows.
  std::string names(const std::string& process, const std::map<trace::Row, std::string>& rows);
  void append(std::string& to, const trace::Event& event);

 private:
  std::string metadata(const char* name, trace::Row row, const std::string& arguments) const;
  const std::string& quoted_text(const char* text);

  int rank_;
  RankClock clock_;
  std::int64_t origin_;
  std::map<const char*, std::string> quoted_;  // texts of events, which live as long as the process
};

}  // namespace nemocube
