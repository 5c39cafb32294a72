#pragma once
#include <string_view>

namespace nemocube::run_report {

/// The style sheet of a report: light or dark by the setting of the reader's system, on
/// screens from 360 pixels on and on paper.
std::string_view style_sheet();

}  // namespace nemocube::run_report
