#include "train/cost/write_plan.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>

#include "core/memory_limit.h"
#include "data/json/json.h"
#include "train/cost/gpu_fit.h"
#include "train/cost/step_time.h"

namespace nemocube {
namespace {

/// The least and the most of some ranks.
struct Span {
  std::int64_t least = std::numeric_limits<std::int64_t>::max(), most = 0;
  void add(std::int64_t value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
};

std::string text_of(const Span& span) {
  const std::string least = bytes_text(span.least), most = bytes_text(span.most);
  return least == most ? most : cat(least, " to ", most);
}

/// Rows of words, each column as wide as its longest word.
class Table {
 public:
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void print(std::ostream& out) const {
    std::vector<std::size_t> widths;
    for (const auto& row : rows_)
      for (std::size_t i = 0; i < row.size(); ++i) {
        if (widths.size() <= i) widths.push_back(0);
        widths[i] = std::max(widths[i], row[i].size());
      }
    for (const auto& row : rows_) {
      for (std::size_t i = 0; i + 1 < row.size(); ++i)
        out << std::left << std::setw(static_cast<int>(widths[i]) + 2) << row[i];
      out << row.back() << '\n';
    }
    out << '\n';
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::int64_t ranks_of(const RunCosts& costs) { return costs.parallel().grid.ranks(); }

/// "blocks 0 to 12 and embeddings"
std::string text_of(const ModelChunk& chunk, std::int64_t blocks) {
  std::string text = cat(chunk.first_block, " to ", std::min(chunk.end_block, blocks) - 1);
  if (chunk.embeddings) text += ", embeddings";
  if (chunk.head) text += ", head";
  return text;
}

void print_groups(std::ostream& out, const RunCosts& costs) {
  Table table;
  table.add({"group", "size", "groups", "the first"});
  for (const auto& [group, groups, ends_only] : costs.groups().all()) {
    if (!groups) continue;
    const std::vector<int> first = groups->ranks(0);
    std::string ranks;
    for (std::size_t i = 0; i < std::min<std::size_t>(first.size(), 4); ++i)
      ranks += cat(i > 0 ? ", " : "", first[i]);
    if (first.size() > 4) ranks += cat(", ... ", first.back());
    table.add({std::string(name_of(group)), cat(ends_only ? 2 : groups->size()), cat(groups->count()),
               ends_only ? cat(first.front(), ", ", first.back()) : ranks});
  }
  table.print(out);
}

void print_stages(std::ostream& out, const RunCosts& costs) {
  const PipelinePlan& pipeline = costs.parallel().pipeline;
  if (pipeline.stages.size() == 1) return;
  Table table;
  table.add({"stage", "pipeline rank", "blocks"});
  for (std::size_t s = 0; s < pipeline.stages.size(); ++s)
    table.add(
        {cat(s), cat(pipeline.rank_of_stage[s]), text_of(pipeline.stages[s], costs.config().num_layers())});
  table.print(out);
}

std::vector<MemoryItem> memory_items(RunCosts& costs, const PlanWords& words, int rank) {
  std::vector<MemoryItem> items = costs.memory(rank);
  if (words.nccl) items.push_back({"NCCL's buffers about", costs.nccl_bytes(rank), true});
  return items;
}

/// Of the rank that needs most.
GpuFit fit_of_plan(const PlanWords& words, RunCosts& costs) {
  const GpuRates gpu = gpu_rates(words.gpu);
  GpuFit tightest = fit_on(gpu, 0, 0);
  const GridSizes& grid = costs.parallel().grid;
  for (std::int64_t r = grid.first_rank; r < grid.end_rank(); ++r) {
    const int rank = static_cast<int>(r);
    const GpuFit fit = fit_on(gpu, total_bytes(costs.memory(rank)), words.nccl ? costs.nccl_bytes(rank) : 0);
    if (fit.spare() < tightest.spare()) tightest = fit;
  }
  return tightest;
}

void print_memory(std::ostream& out, const PlanWords& words, RunCosts& costs) {
  const GridSizes& grid = costs.parallel().grid;
  Table table;
  for (std::int64_t stage = 0; stage < grid.pp; ++stage) {
    const std::int64_t first = grid.first_rank_of_stage(stage), end = first + grid.ranks_of_stage();
    std::vector<std::string> names;
    std::vector<Span> spans;
    Span parameters, total;
    for (std::int64_t rank = first; rank < end; ++rank) {
      const auto items = memory_items(costs, words, static_cast<int>(rank));
      spans.resize(items.size());
      names.clear();
      for (std::size_t i = 0; i < items.size(); ++i) {
        names.push_back(items[i].what);
        spans[i].add(items[i].bytes);
      }
      total.add(total_bytes(items));
      parameters.add(costs.parameters(static_cast<int>(rank)));
    }
    if (stage == 0) {
      std::vector<std::string> header{"ranks", "parameters"};
      std::ranges::copy(names, std::back_inserter(header));
      header.emplace_back("together about");
      table.add(header);
    }
    std::vector<std::string> row{end - first == 1 ? cat(first) : cat(first, "-", end - 1),
                                 parameters.least == parameters.most
                                     ? cat(parameters.most)
                                     : cat(parameters.least, " to ", parameters.most)};
    for (const Span& span : spans) row.push_back(text_of(span));
    row.push_back(text_of(total));
    table.add(row);
  }
  table.print(out);
}

void print_traffic(std::ostream& out, RunCosts& costs) {
  struct Row {
    std::int64_t ranks = 0, all = 0;
    Span calls, bytes;
  };
  std::map<std::pair<Group, Operation>, Row> rows;
  std::int64_t sum = 0;
  const GridSizes& grid = costs.parallel().grid;
  for (std::int64_t rank = grid.first_rank; rank < grid.end_rank(); ++rank)
    for (const auto& [key, value] : costs.traffic(static_cast<int>(rank))) {
      Row& row = rows[key];
      ++row.ranks;
      row.all += value.bytes;
      row.calls.add(value.calls);
      row.bytes.add(value.bytes);
      sum += value.bytes;
    }
  if (rows.empty()) return;
  Table table;
  table.add({"group", "operation", "ranks", "calls", "sent by a rank in a step", "by all ranks"});
  for (const auto& [key, row] : rows)
    table.add({std::string(name_of(key.first)), std::string(name_of(key.second)), cat(row.ranks),
               row.calls.least == row.calls.most ? cat(row.calls.most)
                                                 : cat(row.calls.least, " to ", row.calls.most),
               text_of(row.bytes), bytes_text(row.all)});
  table.add({"all", "", cat(ranks_of(costs)), "", "", bytes_text(sum)});
  table.print(out);
}

std::string percent(double share) { return cat(std::round(1000 * share) / 10, " %"); }

Json json_of(const std::vector<MemoryItem>& items) {
  Json json = Json::object();
  for (const MemoryItem& item : items) json[item.what] = item.bytes;
  return json;
}

Json json_of(const RankTraffic::Sums& sums) {
  Json json = Json::array();
  for (const auto& [key, sum] : sums)
    json.push_back({{"group", name_of(key.first)},
                    {"operation", name_of(key.second)},
                    {"calls", sum.calls},
                    {"bytes", sum.bytes}});
  return json;
}

Json json_of(const std::vector<StepTime::Part>& parts) {
  Json json = Json::object();
  for (const StepTime::Part& part : parts) json[part.name] = part.seconds;
  return json;
}

Json json_of(const StepTime& time, const std::string& gpu) {
  return {{"gpu", gpu},
          {"seconds", time.seconds},
          {"tokens", time.tokens},
          {"model_flops", time.model_flops},
          {"compute", json_of(time.compute)},
          {"exposed", json_of(time.exposed)},
          {"hidden", time.hidden},
          {"idle", time.idle}};
}

Json json_of(const GpuFit& fit, const std::string& gpu) {
  return {{"gpu", gpu},
          {"fits", fit.fits()},
          {"on_the_edge", fit.on_the_edge()},
          {"memory", fit.memory},
          {"context", fit.context},
          {"nccl", fit.nccl},
          {"reserve", fit.reserve},
          {"needed", fit.needed},
          {"spare", fit.spare()}};
}

Json json_of_groups(const RunCosts& costs) {
  Json json = Json::object();
  for (const auto& [group, groups, ends_only] : costs.groups().all())
    if (groups)
      json[std::string(name_of(group))] = {
          {"size", ends_only ? 2 : groups->size()}, {"groups", groups->count()}, {"first", groups->ranks(0)}};
  return json;
}

Json json_of_stages(const RunCosts& costs) {
  const PipelinePlan& pipeline = costs.parallel().pipeline;
  Json json = Json::array();
  for (std::size_t s = 0; s < pipeline.stages.size(); ++s) {
    const ModelChunk& chunk = pipeline.stages[s];
    json.push_back({{"pipeline_rank", pipeline.rank_of_stage[s]},
                    {"first_block", chunk.first_block},
                    {"end_block", std::min(chunk.end_block, costs.config().num_layers())},
                    {"embeddings", chunk.embeddings},
                    {"head", chunk.head}});
  }
  return json;
}

}  // namespace

void print_plan(std::ostream& out, const PlanWords& words, RunCosts& costs) {
  out << words.ranks << '\n' << words.step << '\n';
  out << "weights, gradients, masters and moments are exact, and so is the traffic";
  if (!words.assumption.empty()) out << " provided that " << words.assumption;
  out << "\n\n";
  print_groups(out, costs);
  print_stages(out, costs);
  print_memory(out, words, costs);
  if (words.fit) out << "memory  " << to_string(fit_of_plan(words, costs), words.gpu) << "\n\n";
  print_traffic(out, costs);
  if (costs.parallel().grid.pp > 1) {
    const auto [equal, own] = costs.bubble();
    out << "bubble  " << percent(equal) << " of a step, were all stages alike; " << percent(own)
        << " by their floating-point operations\n";
  }
  const StepTimeOptions options{.gpu = gpu_rates(words.gpu)};
  out << to_string(step_time(costs, options), words.gpu, ranks_of(costs), options);
}

void print_plan_json(std::ostream& out, const PlanWords& words, RunCosts& costs) {
  const GridSizes& g = costs.parallel().grid;
  const auto [equal, own] = costs.bubble();
  Json json{{"ranks", g.ranks()},
            {"text", words.ranks},
            {"step", words.step},
            {"assumption", words.assumption},
            {"grid",
             {{"tp", g.tp},
              {"cp", g.cp},
              {"dp_shard", g.dp_shard},
              {"dp_replicate", g.dp_replicate},
              {"pp", g.pp},
              {"expt_tp", g.expt_tp},
              {"ep", g.ep},
              {"expt_dp", g.expt_dp()}}},
            {"groups", json_of_groups(costs)},
            {"stages", json_of_stages(costs)},
            {"bubble", {{"of_equal_stages", equal}, {"of_own_stages", own}}},
            {"time", json_of(step_time(costs, {.gpu = gpu_rates(words.gpu)}), words.gpu)}};
  if (words.fit) json["fit"] = json_of(fit_of_plan(words, costs), words.gpu);
  std::map<std::string, std::size_t> known;  // classes by their text
  Json classes = Json::array(), class_of_rank = Json::array();
  std::int64_t counted = 0;
  for (std::int64_t r = g.first_rank; r < g.end_rank(); ++r) {
    const int rank = static_cast<int>(r);
    counted += costs.counted_parameters(rank);
    Json entry{{"pipeline_rank", place_of(g, r).pp},
               {"parameters", costs.parameters(rank)},
               {"bytes", json_of(memory_items(costs, words, rank))},
               {"traffic", json_of(costs.traffic(rank))}};
    const auto [found, is_new] = known.emplace(dump_json(entry, -1), classes.size());
    if (is_new) classes.push_back(std::move(entry));
    class_of_rank.push_back(found->second);
  }
  json["parameters"] = counted;
  json["classes"] = std::move(classes);
  json["class_of_rank"] = std::move(class_of_rank);
  out << dump_json(json, -1) << '\n';
}

}  // namespace nemocube
