#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/log.h"
#include "model/blocks/block_type.h"
#include "train/look/report/figure.h"
#include "train/look/report/heat_map.h"
#include "train/look/report/html.h"
#include "train/look/report/lanes.h"
#include "train/look/report/sections.h"
#include "train/look/report/stacked_chart.h"

namespace nemocube::run_report {
namespace {

std::string numbered_id(const char* word, std::size_t number) { return cat(word, "-", number); }

/// What remains of a step is computation, and time in which the rank did neither. Communication beside
/// computation is taken from the rest, so that the parts add up to the step.
std::string times_html(const RunData& run, std::size_t number) {
  const TrainingLog& log = run.training;
  StackedChart chart{
      numbered_id("times", number), "Time of a step", "seconds, on rank 0", {"computation and the rest"}, {}};
  if (log.has_communication_times)
    chart.parts.insert(chart.parts.end(), {"communication", "waiting for other ranks"});
  if (log.has_data_times) chart.parts.emplace_back("data");
  for (RunMeans::Mean mean : log.times.means()) {
    const double step = mean.values[0], data = std::clamp(mean.values[1], 0.0, step);
    const double all = std::clamp(mean.values[2], 0.0, step - data),
                 waiting = std::clamp(mean.values[3], 0.0, all);
    mean.values = {step - data - all};
    if (log.has_communication_times) mean.values.insert(mean.values.end(), {all - waiting, waiting});
    if (log.has_data_times) mean.values.push_back(data);
    chart.columns.push_back(std::move(mean));
  }
  if (chart.columns.empty()) return absence_html("Time of a step", "no line of the log has a rate");
  if (log.times.run_length() > 1)
    chart.about += cat("; each column is a mean over ", log.times.run_length(), " steps");
  std::string html = stacked_chart_html(chart), absent;
  if (!log.has_data_times) absent += "the log is of an older program, which did not write data_seconds";
  if (!log.has_communication_times)
    absent += cat(absent.empty() ? "" : "; ",
                  "communication and waiting are not logged on one rank and with NCCL, where they count as "
                  "computation");
  else
    html +=
        "<p class=\"note\">Communication that runs beside computation counts as communication here.</p>\n";
  return html + (absent.empty() ? "" : absence_html("Parts that are not shown", absent));
}

/// Names of the MoE blocks: their numbers in the model, or their order where the model is not known.
std::vector<std::string> block_names(const RunData& run, std::size_t count) {
  std::vector<std::string> names;
  if (run.model)
    for (std::size_t i = 0; i < run.model->blocks.size(); ++i)
      if (run.model->blocks[i]->cores(run.model->block(static_cast<std::int64_t>(i))).experts)
        names.push_back(std::to_string(i));
  if (names.size() == count) return names;
  names.clear();
  for (std::size_t i = 0; i < count; ++i) names.push_back(cat(i + 1, ". MoE"));
  return names;
}

std::string imbalance_html(const RunData& run, std::size_t number) {
  const auto columns = run.training.experts.imbalance.means();
  const std::size_t blocks = columns.front().values.size();
  HeatMap map{numbered_id("imbalance", number),
              "Imbalance of the experts",
              "tokens of the busiest expert over the mean, by block and step; 1 is even",
              "block",
              "step",
              block_names(run, blocks),
              {},
              std::vector<std::vector<double>>(blocks),
              1};
  if (const auto length = run.training.experts.imbalance.run_length(); length > 1)
    map.about += cat("; each column is a mean over ", length, " steps");
  for (const auto& column : columns) {
    map.columns.push_back(column.first_x == column.last_x
                              ? readable(column.first_x)
                              : cat(readable(column.first_x), " to ", readable(column.last_x)));
    for (std::size_t i = 0; i < blocks; ++i) map.values[i].push_back(column.values[i]);
  }
  return heat_map_html(map);
}

std::string loads_html(const RunData& run, std::size_t number) {
  const auto& tokens = run.training.experts.tokens;
  std::size_t experts = 0;
  for (const auto& block : tokens) experts = std::max(experts, block.size());
  HeatMap map{numbered_id("loads", number),
              "Load of the experts",
              "tokens of an expert over the mean of its block, over all steps of the log; 1 is even",
              "block",
              "expert",
              block_names(run, tokens.size()),
              {},
              {},
              0};
  for (std::size_t i = 0; i < experts; ++i) map.columns.push_back(std::to_string(i));
  for (const auto& block : tokens) {
    const double sum = std::accumulate(block.begin(), block.end(), 0.0);
    auto& row = map.values.emplace_back();
    for (const double count : block)
      row.push_back(sum > 0 ? count * static_cast<double>(block.size()) / sum : 0);
    row.resize(experts, 0);
  }
  return heat_map_html(map);
}

std::string experts_html(const RunData& run, std::size_t number) {
  if (run.training.experts.tokens.empty())
    return absence_html("Load of the experts",
                        "not logged; moe_metrics.enabled: true turns it on, as experts on several ranks do");
  return imbalance_html(run, number) + loads_html(run, number);
}

std::string pipeline_section(const RunData& run, std::size_t number) {
  if (!run.pipeline) return absence_html("Timeline of the pipeline", run.no_pipeline);
  return pipeline_html(numbered_id("pipeline", number), "Timeline of the pipeline", *run.pipeline);
}

std::string prediction_table(const Predictions& set) {
  std::string html = cat(
      "<div class=\"card wide\"><h3>", escaped(set.set == "default" ? "Answers" : "Answers, " + set.set),
      "</h3>\n<p class=\"note\">",
      escaped(cat(counted(set.count, "question"), ", exact match ",
                  readable(std::round(set.exact_match * 100) / 100), " %, F1 ",
                  readable(std::round(set.f1 * 100) / 100), " %, from ", set.file,
                  set.count > static_cast<std::int64_t>(set.answers.size())
                      ? cat("; the first ", set.answers.size(), " are shown")
                      : "")),
      "</p>\n<div class=\"scroll\" tabindex=\"0\"><table><caption>Questions and answers</caption><thead><tr>"
      "<th scope=\"col\" class=\"text\"></th><th scope=\"col\" class=\"text\">question</th>"
      "<th scope=\"col\" class=\"text\">answer of the model</th><th scope=\"col\" class=\"text\">right "
      "answers</th>"
      "</tr></thead><tbody>\n");
  for (const ShownAnswer& answer : set.answers) {
    std::string right;
    for (const std::string& text : answer.answers) right += (right.empty() ? "" : " / ") + text;
    html +=
        cat("<tr><td class=\"", answer.right ? "right\">\xE2\x9C\x94 right" : "wrong\">\xE2\x9C\x98 wrong",
            "</td><td class=\"text\">", escaped(answer.question), "</td><td class=\"text\">",
            escaped(answer.prediction.empty() ? "(none)" : answer.prediction), "</td><td class=\"text\">",
            escaped(right.empty() ? "(no answer)" : right), "</td></tr>\n");
  }
  return html + "</tbody></table></div></div>\n";
}

std::string predictions_html(const RunData& run) {
  std::string html;
  for (const Predictions& set : run.predictions) html += prediction_table(set);
  for (const std::string& why : run.no_predictions) html += absence_html("Predictions", why);
  return html;
}

}  // namespace

std::string parts_html(const RunData& run, std::size_t number) {
  return cat("<div class=\"charts\">\n", times_html(run, number), experts_html(run, number),
             pipeline_section(run, number), predictions_html(run), "</div>\n");
}

}  // namespace nemocube::run_report
