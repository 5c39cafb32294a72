#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/error.h"
#include "core/log.h"
#include "train/logging/progress.h"
#include "train/look/report/figure.h"
#include "train/look/report/html.h"
#include "train/look/report/sections.h"
#include "train/recipe/names.h"

namespace nemocube::run_report {
namespace {

std::string progress_class(Progress progress) {
  switch (progress) {
    case Progress::under_way:
      return "under-way";
    case Progress::finished:
      return "finished";
    case Progress::stopped:
      return "stopped";
    case Progress::unknown:
      break;
  }
  return "unknown";
}

/// A figure of a run, and what stands below it.
struct Tile {
  std::string name, value, note;
};

const Curve* curve_of(const RunData& run, const char* field) {
  const auto found = run.training.curves.find(field);
  return found == run.training.curves.end() ? nullptr : &found->second;
}

std::string set_text(const std::string& set) { return set == "default" ? "" : " of " + set; }

void add_validation(const RunData& run, std::vector<Tile>& tiles) {
  for (const auto& [set, log] : run.validation)
    if (const auto loss = log.curves.find("val_loss"); loss != log.curves.end()) {
      const Point lowest = *loss->second.points.lowest();
      tiles.push_back({"Lowest validation loss" + set_text(set), readable(lowest.y),
                       cat("at step ", readable(lowest.x))});
    }
  for (const auto& [set, log] : run.validation)
    if (const auto em = log.curves.find("exact_match"); em != log.curves.end()) {
      const Point highest = *em->second.points.highest();
      tiles.push_back({"Exact match" + set_text(set), readable(std::round(highest.y * 100) / 100) + " %",
                       cat("at step ", readable(highest.x))});
    }
}

std::vector<Tile> tiles_of(const RunData& run) {
  std::vector<Tile> tiles;
  if (const Curve* loss = curve_of(run, "loss"))
    tiles.push_back({"Loss", readable(loss->points.last()->y),
                     cat("at step ", readable(loss->points.last()->x), "; ",
                         readable(loss->points.first()->y), " at step ", readable(loss->points.first()->x))});
  add_validation(run, tiles);
  const TrainingLog& log = run.training;
  if (log.seconds > 0) {
    tiles.push_back(
        {"Tokens a second", short_count(log.tokens / log.seconds),
         cat("mean; a step takes ",
             readable(std::round(log.seconds / static_cast<double>(log.timed_steps) * 1e4) / 1e4), " s")});
    tiles.push_back({"Training time", short_duration(log.seconds), "without validation and checkpoints"});
  }
  if (const Curve* memory = curve_of(run, "mem"))
    tiles.push_back({"Memory", readable(std::round(memory->points.highest()->y * 1e4) / 1e4) + " GiB",
                     "most that tensors held on a rank"});
  if (const Curve* mfu = curve_of(run, "mfu"))
    tiles.push_back({"MFU", readable(std::round(mfu->mean() * 100) / 100) + " %", "mean of the steps"});
  return tiles;
}

std::string tiles_html(const std::vector<Tile>& tiles) {
  std::string html = "<dl class=\"tiles\">";
  for (const Tile& tile : tiles)
    html += cat("<div><dt>", escaped(tile.name), "</dt><dd>", escaped(tile.value), "<small>",
                escaped(tile.note), "</small></dd></div>\n");
  return html + "</dl>\n";
}

std::string pill_html(const RunData& run) {
  return cat("<p class=\"pill ", progress_class(run.progress), "\">", escaped(run.progress_text), "</p>\n");
}

/// A row for each run, with the figures that some run has.
std::string comparison_html(std::span<const RunData> runs, const std::vector<std::string>& names) {
  std::vector<std::string> columns;
  std::vector<std::map<std::string, std::string>> values;
  for (const RunData& run : runs) {
    auto& row = values.emplace_back();
    for (const Tile& tile : tiles_of(run)) {
      if (!row.emplace(tile.name, tile.value).second) continue;
      if (std::ranges::find(columns, tile.name) == columns.end()) columns.push_back(tile.name);
    }
  }
  Table table{{"run", "state"}, {}, 2};
  table.head.insert(table.head.end(), columns.begin(), columns.end());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::vector<std::string> row{names[i], runs[i].progress_text};
    for (const std::string& column : columns) row.push_back(values[i][column]);
    table.rows.push_back(std::move(row));
  }
  return table_html(table, "Main figures of the runs");
}

std::string model_text(const ModelConfig& config) {
  std::map<std::string_view, std::int64_t> kinds;
  for (const BlockKind kind : config.blocks) ++kinds[name_of(kind)];
  std::string text =
      cat(short_count(static_cast<double>(count_tensors(tensor_specs(ModelSetup(config))).parameters())),
          " parameters in ", counted(static_cast<std::int64_t>(config.blocks.size()), "block"), " (");
  bool first = true;
  for (const auto& [kind, count] : kinds)
    text += cat(std::exchange(first, false) ? "" : ", ", count, " ", kind);
  return text + cat("), hidden size ", config.hidden_size, ", vocabulary ", config.vocab_size);
}

std::string list_of(const std::set<std::string>& texts) {
  std::string list;
  for (const std::string& text : texts) list += (list.empty() ? "" : "; ") + text;
  return list;
}

}  // namespace

std::vector<std::string> names_of(std::span<const RunData> runs) {
  std::vector<std::string> names;
  for (const RunData& run : runs) {
    const bool alone = std::ranges::count(runs, run.name, &RunData::name) == 1;
    names.push_back(alone ? run.name : run.folder.string());
  }
  return names;
}

std::string heading_html(std::span<const RunData> runs, const std::vector<std::string>& names) {
  if (runs.size() == 1)
    return cat("<p class=\"kicker\">nemocube training run</p>\n<h1>", escaped(names[0]), "</h1>\n",
               pill_html(runs[0]), tiles_html(tiles_of(runs[0])));
  return cat("<p class=\"kicker\">nemocube training runs</p>\n<h1>Comparison of ", runs.size(),
             " runs</h1>\n", comparison_html(runs, names));
}

std::string facts_html(const RunData& run) {
  const TrainingLog& log = run.training;
  std::vector<std::pair<std::string, std::string>> facts{{"Directory", run.folder.string()}};
  facts.emplace_back(
      "Model", run.model ? model_text(*run.model) : "not known: the run has no checkpoint that holds it");
  std::set<std::string> versions, layouts;
  for (const ProgramStart& start : log.starts) {
    if (!start.version.empty()) versions.insert(start.version);
    if (!start.layout.empty()) layouts.insert(start.layout);
  }
  facts.emplace_back("Ranks", layouts.empty() ? "1 rank" : list_of(layouts));
  facts.emplace_back("Device", run.recipe
                                   ? cat(recipe::name_of_choice(run.recipe->device), ", as the recipe says")
                                   : "not known: the recipe is not");
  facts.emplace_back("Program", versions.empty() ? "the log does not say" : list_of(versions));
  facts.emplace_back(
      "Steps", cat(log.first_step, " to ", log.last_step, ", in ", counted(log.last_epoch + 1, "epoch"), "; ",
                   counted(log.skipped_steps, "step"), " skipped"));
  facts.emplace_back("Dates", cat("first step ", readable_time(log.first_timestamp), ", last step ",
                                  readable_time(log.last_timestamp)));
  std::string starts = counted(static_cast<std::int64_t>(log.starts.size()), "start");
  for (std::size_t i = 1; i < log.starts.size() && i < 10; ++i)
    starts += cat(i == 1 ? "; again at step " : ", ", readable(log.starts[i].step), " (",
                  readable_time(log.starts[i].timestamp), ")");
  if (!log.starts.empty()) facts.emplace_back("Starts", starts);
  facts.emplace_back("How it ended", run.progress_text);
  std::int64_t damaged = log.damaged;
  for (const auto& [set, validation] : run.validation) damaged += validation.damaged;
  if (damaged > 0) facts.emplace_back("Logs", cat(counted(damaged, "damaged line"), " left out"));
  std::string html = "<div class=\"card\"><dl class=\"facts\">\n";
  for (const auto& [name, text] : facts)
    html += cat("<dt>", escaped(name), "</dt><dd>", escaped(text), "</dd>\n");
  return html + "</dl></div>\n";
}

}  // namespace nemocube::run_report
