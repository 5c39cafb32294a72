#pragma once
#include <span>
#include <string>

#include "train/look/report/read_run.h"

namespace nemocube::run_report {

/// The whole page of a report: HTML that needs nothing else, no script and no network, and is well-formed XML
/// below its first line. `made`: a time, for the last line. pre: a run
std::string page_html(std::span<const RunData> runs, const std::string& made);

}  // namespace nemocube::run_report
