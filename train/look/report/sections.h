#pragma once
#include <span>
#include <string>
#include <vector>

#include "train/look/report/read_run.h"

/// The sections of a report, as HTML.
namespace nemocube::run_report {

/// Names of the runs on the page: their names, or their paths where two have the same name.
std::vector<std::string> names_of(std::span<const RunData> runs);

/// Names, how far the runs have come, their main figures.
std::string heading_html(std::span<const RunData> runs, const std::vector<std::string>& names);
/// Model, program, layout, device, dates of one run.
std::string facts_html(const RunData& run);
/// Loss, validation, learning rate, gradient norm, rates, memory; the curves of all runs in the same charts.
std::string curves_html(std::span<const RunData> runs, const std::vector<std::string>& names);
/// Time of a step by part, experts, pipeline, predictions of one run. Ids on the page end with `number`.
std::string parts_html(const RunData& run, std::size_t number);
/// Of several runs the differences first.
std::string recipes_html(std::span<const RunData> runs, const std::vector<std::string>& names);

}  // namespace nemocube::run_report
