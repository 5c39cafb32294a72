#include "train/checkpoint/run_state.h"

#include <nlohmann/json.hpp>
#include "core/error.h"
#include "data/json/json.h"

namespace nemocube {
namespace {

// More than any run counts, and small enough that products with batch sizes stay within 64 bits.
constexpr std::int64_t highest_count = std::int64_t{1} << 48;

std::int64_t count(const JsonView& json, const char* name) {
  const JsonView value = json.at(name);
  if (value.integer() < 0 || value.integer() > highest_count) value.refuse("an integer from 0 to 2^48");
  return value.integer();
}

// The invariants after every step of a run; see RunState.
void check_possible(const std::string& file, const RunState& s) {
  const auto at_most = [&](const char* name, std::int64_t value, const char* of, std::int64_t limit) {
    require(value <= limit, file, ": '", name, "' is ", value, ", more than '", of, "', which is ", limit);
  };
  at_most("nonfinite_in_a_row", s.nonfinite_in_a_row, "skipped_steps", s.skipped_steps);
  at_most("step", s.step, "samples", s.samples);  // every step takes at least one sample
  at_most("loader.epoch", s.loader.epoch, "step", s.step);
  at_most("loader.next_index", s.loader.next_index, "loader.rows", s.loader.rows);
  require(s.optimizer_steps == s.scheduler_steps, file, ": 'optimizer_steps' is ", s.optimizer_steps,
          ", 'scheduler_steps' is ", s.scheduler_steps, "; want the same number");
  require(s.scheduler_steps + s.skipped_steps == s.step, file, ": 'scheduler_steps' and 'skipped_steps' are ",
          s.scheduler_steps, " and ", s.skipped_steps, ", which is not 'step', ", s.step, ", in all");
}

}  // namespace

std::string to_string(const RankLayout& layout) {
  if (layout.ranks == 1) return "1 rank";
  return cat(layout.ranks, " ranks (dp_shard ", layout.dp_shard, ", dp_replicate ", layout.dp_replicate,
             ", ZeRO level ", static_cast<int>(layout.zero), ")");
}

FileSum write_run_state(const std::filesystem::path& file, const RunState& s, const Origin& origin,
                        const RankLayout& layout) {
  Json json{{"step", s.step},
            {"scheduler_steps", s.scheduler_steps},
            {"optimizer_steps", s.optimizer_steps},
            {"samples", s.samples},
            {"skipped_steps", s.skipped_steps},
            {"nonfinite_in_a_row", s.nonfinite_in_a_row},
            {"loader", to_json(s.loader)},
            {"origin",
             {{"program", origin.program},
              {"serial", origin.serial},
              {"parent", origin.parent},
              {"parent_steps", origin.parent_steps}}}};
  if (layout.ranks > 1)
    json["layout"] = {{"ranks", layout.ranks},
                      {"dp_shard", layout.dp_shard},
                      {"dp_replicate", layout.dp_replicate},
                      {"zero", static_cast<int>(layout.zero)}};
  return write_file_atomically(file, dump_json(json) + "\n");
}

RunState read_run_state(const std::filesystem::path& file) {
  const Json json = read_json_file(file);
  const JsonView view(json, file.string());
  RunState s;
  s.step = count(view, "step");
  s.scheduler_steps = count(view, "scheduler_steps");
  s.optimizer_steps = count(view, "optimizer_steps");
  s.samples = count(view, "samples");
  s.skipped_steps = count(view, "skipped_steps");
  s.nonfinite_in_a_row = count(view, "nonfinite_in_a_row");
  s.loader = loader_state_from_json(view.at("loader"));
  check_possible(file.string(), s);
  return s;
}

std::optional<Origin> read_origin(const std::filesystem::path& file) {
  const Json json = read_json_file(file);
  const auto origin = JsonView(json, file.string()).find("origin");
  if (!origin) return std::nullopt;
  return Origin{origin->at("program").string(), count(*origin, "serial"), origin->at("parent").string(),
                count(*origin, "parent_steps")};
}

RankLayout read_rank_layout(const std::filesystem::path& file) {
  const Json json = read_json_file(file);
  const auto layout = JsonView(json, file.string()).find("layout");
  if (!layout) return {};
  const JsonView zero = layout->at("zero");
  if (zero.integer() < 0 || zero.integer() > static_cast<int>(ZeroLevel::parameters))
    zero.refuse("an integer from 0 to 3");
  return {count(*layout, "ranks"), count(*layout, "dp_shard"), count(*layout, "dp_replicate"),
          static_cast<ZeroLevel>(zero.integer())};
}

}  // namespace nemocube
