#pragma once
#include <string>

#include "train/look/report/read_profile.h"

namespace nemocube::run_report {

/// A lane for each rank, a box for each action. Each box has data-begin and data-seconds, and a tooltip.
std::string pipeline_html(const std::string& id, const std::string& title, const PipelineProfile& profile);

}  // namespace nemocube::run_report
