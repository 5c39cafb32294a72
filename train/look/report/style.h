#pragma once
#include <string_view>

namespace nemocube::run_report {

/// The style sheet of a report: light and dark as the reader's system has it, on screens from 360 pixels on
/// and on paper.
std::string_view style_sheet();

}  // namespace nemocube::run_report
