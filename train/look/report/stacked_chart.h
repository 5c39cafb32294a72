#pragma once
#include <string>
#include <vector>

#include "train/look/report/thinning.h"

namespace nemocube::run_report {

/// Columns of parts that add up, one column for each mean.
struct StackedChart {
  std::string id, title, about;
  std::vector<std::string> parts;       ///< names, from the bottom up
  std::vector<RunMeans::Mean> columns;  ///< values in the order of the parts, none negative
};

/// Each rectangle has its exact value as data-value, and the column's steps as data-first and data-last.
std::string stacked_chart_html(const StackedChart& chart);

/// "step 5", "steps 4 to 7".
std::string steps_text(double first, double last);

}  // namespace nemocube::run_report
