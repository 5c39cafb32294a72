#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "train/look/report/figure.h"
#include "train/look/report/html.h"
#include "train/look/report/line_chart.h"
#include "train/look/report/sections.h"

namespace nemocube::run_report {
namespace {

constexpr std::int64_t least_with_means = 200;

/// A field of training.jsonl as a chart of its own.
struct CurveField {
  const char *field, *title, *about;
  bool smooth;         ///< does not want means
  const char* absent;  ///< why it may be absent; empty: then nothing is said
};
constexpr std::array<CurveField, 5> small_charts{
    {{"lr", "Learning rate", "of the next step", true, "no line of the log has it"},
     {"grad_norm", "Gradient norm", "L2 norm of all gradients, before clipping", false,
      "no line of the log has it"},
     {"tps", "Tokens a second", "label positions of all ranks", false, "no line of the log has it"},
     {"mem", "Memory", "GiB, most that tensors held on a rank during the step", false,
      "no line of the log has it"},
     {"mfu", "Model FLOPs utilisation", "percent of the peak that mfu.peak_tflops names", false,
      "not logged; the recipe key mfu.peak_tflops, the peak of a rank's device, turns it on"}}};
constexpr std::array<CurveField, 4> router_charts{
    {{"aux_loss", "Load-balancing loss of the experts", "weighted; no part of the loss", false, ""},
     {"seq_aux_loss", "Load-balancing loss by sequence", "weighted; no part of the loss", false, ""},
     {"global_aux_loss", "Load-balancing loss over the global batch", "weighted; no part of the loss", false,
      ""},
     {"z_loss", "Router z-loss", "weighted; no part of the loss", false, ""}}};

LineSeries series_of(const Curve& curve, std::string name, std::size_t colour, int dash = 0) {
  LineSeries series{std::move(name), colour, dash, curve.points.points()};
  if (curve.points.count() > least_with_means)
    for (const RunMeans::Mean& mean : curve.means.means())
      series.means.push_back({(mean.first_x + mean.last_x) / 2, mean.values[0]});
  return series;
}

std::string about_means(const std::vector<LineSeries>& series) {
  for (const LineSeries& s : series)
    if (!s.means.empty()) return "; the strong line is a mean over neighbouring steps";
  return "";
}

std::string training_name(std::span<const RunData> runs, const std::vector<std::string>& names,
                          std::size_t i) {
  return runs.size() == 1 ? "training" : names[i];
}

std::string set_name(const std::string& set) {
  return set == "default" ? "validation" : "validation, " + set;
}

/// The field of all validation sets of a run. Sets differ by colour, or where `one_colour` by dashes.
void add_validation_series(const RunData& run, const char* field, const std::string& before,
                           std::size_t colour, bool one_colour, std::vector<LineSeries>& all) {
  int dash = 1;
  for (const auto& [set, log] : run.validation)
    if (const auto curve = log.curves.find(field); curve != log.curves.end()) {
      all.push_back(series_of(curve->second, before + set_name(set), colour, dash));
      if (one_colour)
        ++dash;
      else
        ++colour;
    }
}

std::string loss_html(std::span<const RunData> runs, const std::vector<std::string>& names) {
  LineChart chart{"loss", "Loss", "mean cross-entropy over labelled tokens, in nats", true, false, {}};
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (const auto loss = runs[i].training.curves.find("loss"); loss != runs[i].training.curves.end())
      chart.series.push_back(series_of(loss->second, training_name(runs, names, i), i));
  if (runs.size() == 1) {
    const RunData& run = runs[0];
    add_validation_series(run, "val_loss", "", 1, false, chart.series);
    for (const auto& branch : run.left_branches)
      chart.series.push_back(series_of(branch.loss, "branch, " + branch.file, 6));
    for (std::size_t i = 1; i < run.training.starts.size(); ++i) {
      const ProgramStart& start = run.training.starts[i];
      chart.marks.push_back({start.step, cat("started again at step ", readable(start.step), ", ",
                                             readable_time(start.timestamp))});
    }
    chart.mark_name = "started again";
  }
  if (chart.series.empty()) return absence_html("Loss", "no line of the log has a finite number");
  chart.about += about_means(chart.series);
  return line_chart_html(chart);
}

std::string validation_html(std::span<const RunData> runs, const std::vector<std::string>& names) {
  if (std::ranges::all_of(runs, [](const RunData& run) { return run.validation.empty(); }))
    return absence_html("Validation loss", "there is no validation log yet");
  LineChart chart{"validation",
                  "Validation loss",
                  "mean cross-entropy over the set, in nats per label token",
                  true,
                  false,
                  {}};
  for (std::size_t i = 0; i < runs.size(); ++i)
    add_validation_series(runs[i], "val_loss", names[i] + ", ", i, true, chart.series);
  // The curves of one run are in the chart of its loss.
  return runs.size() == 1 || chart.series.empty() ? "" : line_chart_html(chart);
}

/// Exact match and F1: of one run in one chart, of several in two.
std::string answers_html(std::span<const RunData> runs, const std::vector<std::string>& names) {
  LineChart exact_match{
      "exact_match", "Exact match of validations", "percent of the questions", true, true, {}},
      f1{"f1", "F1 of validations", "percent, mean over the questions", true, true, {}},
      both{"answers",
           "Answers of validations",
           "percent of the questions (exact match), mean over them (F1)",
           true,
           true,
           {}};
  if (runs.size() == 1) {
    add_validation_series(runs[0], "exact_match", "exact match, ", 0, false, both.series);
    add_validation_series(runs[0], "f1", "F1, ", both.series.size(), false, both.series);
  } else {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      add_validation_series(runs[i], "exact_match", names[i] + ", ", i, true, exact_match.series);
      add_validation_series(runs[i], "f1", names[i] + ", ", i, true, f1.series);
    }
  }
  std::string html;
  for (const LineChart* chart : {&both, &exact_match, &f1})
    if (!chart->series.empty()) html += line_chart_html(*chart);
  return html.empty()
             ? absence_html("Answers of validations",
                            "not logged; evaluation.squad_metrics: true makes validations answer questions")
             : html;
}

std::string field_html(const CurveField& field, std::span<const RunData> runs,
                       const std::vector<std::string>& names) {
  LineChart chart{field.field, field.title, field.about, false, true, {}};
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (const auto curve = runs[i].training.curves.find(field.field); curve != runs[i].training.curves.end())
      chart.series.push_back(series_of(curve->second, training_name(runs, names, i), i));
  if (chart.series.empty()) return *field.absent ? absence_html(field.title, field.absent) : "";
  if (field.smooth)
    for (LineSeries& series : chart.series) series.means.clear();
  return line_chart_html(chart);
}

/// One chart for each depth that some run has, in order.
std::vector<std::string> mtp_html(std::span<const RunData> runs, const std::vector<std::string>& names) {
  std::set<std::int64_t> depths;
  for (const RunData& run : runs)
    for (const auto& [field, curve] : run.training.curves)
      if (const auto depth = mtp_depth(field)) depths.insert(*depth);
  std::vector<std::string> charts;
  for (const std::int64_t depth : depths) {
    const std::string field = cat("mtp_loss_", depth), title = cat("Multi-token prediction, depth ", depth);
    charts.push_back(field_html(
        {field.c_str(), title.c_str(), "nats per label token; not weighted, no part of the loss", false, ""},
        runs, names));
  }
  return charts;
}

std::string not_finite_html(const RunData& run, const std::string& name) {
  const TrainingLog& log = run.training;
  if (log.not_finite_steps == 0) return "";
  std::string steps;
  for (const double step : log.not_finite) steps += cat(steps.empty() ? "" : ", ", readable(step));
  return cat(
      "<p class=\"note\">",
      escaped(cat(name, ": the loss of ", counted(log.not_finite_steps, "step"),
                  " is not finite and not drawn (", steps,
                  log.not_finite_steps > static_cast<std::int64_t>(log.not_finite.size()) ? ", ...)" : ")")),
      "</p>\n");
}

}  // namespace

std::string curves_html(std::span<const RunData> runs, const std::vector<std::string>& names) {
  std::string html = "<div class=\"charts\">\n" + loss_html(runs, names);
  for (std::size_t i = 0; i < runs.size(); ++i) html += not_finite_html(runs[i], names[i]);
  html += validation_html(runs, names);
  std::string absent = answers_html(runs, names);
  if (!absent.starts_with("<p")) html += std::exchange(absent, "");
  for (const CurveField& field : small_charts) {
    const std::string chart = field_html(field, runs, names);
    (chart.starts_with("<p") ? absent : html) += chart;
  }
  for (const std::string& chart : mtp_html(runs, names)) html += chart;
  for (const CurveField& field : router_charts) html += field_html(field, runs, names);
  return html + absent + "</div>\n";
}

}  // namespace nemocube::run_report
