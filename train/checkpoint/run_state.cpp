#include "train/checkpoint/run_state.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/json/json.h"

namespace nemocube {
namespace {

// More than any run counts, and small enough that products with batch sizes stay within 64 bits.
constexpr std::int64_t highest_count = std::int64_t{1} << 48;

// Sizes of the grid that divide the model.
constexpr std::array<std::pair<const char*, std::int64_t GridSizes::*>, 5> model_sizes{
    {{"tp", &GridSizes::tp},
     {"cp", &GridSizes::cp},
     {"pp", &GridSizes::pp},
     {"expt_tp", &GridSizes::expt_tp},
     {"ep", &GridSizes::ep}}};

std::int64_t count(const JsonView& json, const char* name) {
  const JsonView value = json.at(name);
  if (value.integer() < 0 || value.integer() > highest_count) value.refuse("an integer from 0 to 2^48");
  return value.integer();
}

Json to_json(const EarlyStoppingState& s) {
  Json json{
      {"metric", s.metric}, {"best_step", s.best_step}, {"waited", s.waited}, {"last_step", s.last_step}};
  if (s.best_loss) json["best_loss"] = *s.best_loss;
  return json;
}

EarlyStoppingState early_stopping_from(const JsonView& json) {
  EarlyStoppingState s;
  s.metric = json.at("metric").string();
  if (const auto best = json.find("best_loss")) s.best_loss = best->number();
  s.best_step = count(json, "best_step");
  s.waited = count(json, "waited");
  s.last_step = count(json, "last_step");
  return s;
}

Json to_json(const RowInputs& rows) {
  Json list = Json::array();
  for (const RowInput& input : rows)
    list.push_back({{"role", input.role},
                    {"place", input.place},
                    {"bytes", input.sum.bytes},
                    {"crc32c", input.sum.crc32c}});
  return list;
}

RowInputs rows_from(const JsonView& json) {
  RowInputs rows;
  for (const JsonView& input : json.elements()) {
    const JsonView sum = input.at("crc32c");
    if (sum.integer() < 0 || sum.integer() > std::numeric_limits<std::uint32_t>::max())
      sum.refuse("an integer from 0 to 2^32 - 1");
    rows.push_back({std::string(input.at("role").string()),
                    std::string(input.at("place").string()),
                    {count(input, "bytes"), static_cast<std::uint32_t>(sum.integer())}});
  }
  return rows;
}

std::map<std::string, RowInputs> validation_rows_from(const JsonView& json) {
  if (!json.value().is_object()) json.refuse("an object");
  std::map<std::string, RowInputs> sets;
  for (const auto& [name, rows] : json.value().items()) sets.emplace(name, rows_from(json.member(name)));
  return sets;
}

Moment moment_from(const JsonView& json) {
  try {
    return parse_moment(std::string(json.string()));
  } catch (const Error& error) {
    fail(json.file(), ": '", json.place(), "': ", error.what());
  }
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
  // Fewer where a run has resumed without them (checkpoint.load_optim, load_scheduler).
  at_most("skipped_steps", s.skipped_steps, "step", s.step);
  for (const auto& [name, steps] :
       {std::pair{"optimizer_steps", s.optimizer_steps}, {"scheduler_steps", s.scheduler_steps}})
    require(steps <= s.step - s.skipped_steps, file, ": '", name, "' is ", steps,
            ", more than 'step' less 'skipped_steps', which is ", s.step - s.skipped_steps);
  if (!s.early_stopping) return;
  at_most("early_stopping.best_step", s.early_stopping->best_step, "early_stopping.last_step",
          s.early_stopping->last_step);
  at_most("early_stopping.waited", s.early_stopping->waited, "step", s.step);
  require(s.early_stopping->last_step < s.step, file, ": 'early_stopping.last_step' is ",
          s.early_stopping->last_step, ", not below 'step', which is ", s.step);
}

}  // namespace

void want_same_batches(const BatchShape& written, const BatchShape& now) {
  const auto same = [](const char* key, std::int64_t before, std::int64_t after) {
    require(before == after, "the checkpoint's place in the data counts with ", key, " = ", before,
            ", this run has ", after,
            "; want the same, or checkpoint.load_data=false, which begins at the first row");
  };
  same("step_scheduler.global_batch_size", written.global_batch_size, now.global_batch_size);
  same("dataset.seq_length", written.seq_length, now.seq_length);
  same("packed_sequence.packed_sequence_size", written.packed_sequence_size, now.packed_sequence_size);
}

std::string to_string(const RankLayout& layout) {
  const GridSizes& grid = layout.grid;
  if (grid.ranks() == 1) return "1 rank";
  std::string text = cat(grid.ranks(), " ranks ");
  if (grid.first_rank > 0) text += cat("from rank ", grid.first_rank, ' ');
  text += '(';
  for (const auto& [name, size] : model_sizes)
    if (grid.*size > 1) text += cat(name, ' ', grid.*size, ", ");
  text += cat("dp_shard ", grid.dp_shard, ", dp_replicate ", grid.dp_replicate, ", ZeRO level ",
              static_cast<int>(layout.zero));
  return text + (layout.stages.empty() ? ")" : cat("; ", layout.stages, ")"));
}

std::string describe_stages(const PipelinePlan& pipeline) {
  if (pipeline.stages.size() == 1) return "";
  std::string text;
  for (std::size_t s = 0; s < pipeline.stages.size(); ++s) {
    const auto& [first, end, embeddings, head] = pipeline.stages[s];
    text += cat(s > 0 ? "; " : "", "rank ", pipeline.rank_of_stage[s], ": ",
                first == end       ? "no blocks"
                : first + 1 == end ? cat("block ", first)
                                   : cat("blocks ", first, " to ", end - 1));
  }
  return text;
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
  if (s.schedule_length > 0) json["schedule_length"] = s.schedule_length;
  if (s.batch)
    json["batch"] = {{"global_batch_size", s.batch->global_batch_size},
                     {"seq_length", s.batch->seq_length},
                     {"packed_sequence_size", s.batch->packed_sequence_size}};
  if (!s.rows.empty()) json["rows"] = to_json(s.rows);
  for (const auto& [name, rows] : s.validation_rows)
    if (!rows.empty()) json["validation_rows"][name] = to_json(rows);
  if (s.moment) json["moment"] = to_string(*s.moment);
  if (s.early_stopping) json["early_stopping"] = to_json(*s.early_stopping);
  if (layout.ranks() > 1) {
    Json& ranks = json["layout"] = {{"ranks", layout.ranks()},
                                    {"dp_shard", layout.grid.dp_shard},
                                    {"dp_replicate", layout.grid.dp_replicate},
                                    {"zero", static_cast<int>(layout.zero)}};
    for (const auto& [name, size] : model_sizes) ranks[name] = layout.grid.*size;
    if (layout.grid.first_rank > 0) ranks["first_rank"] = layout.grid.first_rank;
    if (!layout.stages.empty()) ranks["stages"] = layout.stages;
  }
  return write_file_atomically(file, dump_json(json) + "\n");
}

RunState read_run_state(const std::filesystem::path& file) {
  const Json json = read_json_file(file);
  const JsonView view(json, file.string());
  RunState s;
  s.step = count(view, "step");
  s.scheduler_steps = count(view, "scheduler_steps");
  if (view.find("schedule_length")) s.schedule_length = count(view, "schedule_length");
  s.optimizer_steps = count(view, "optimizer_steps");
  s.samples = count(view, "samples");
  s.skipped_steps = count(view, "skipped_steps");
  s.nonfinite_in_a_row = count(view, "nonfinite_in_a_row");
  s.loader = loader_state_from_json(view.at("loader"));
  if (const auto batch = view.find("batch"))
    s.batch = {count(*batch, "global_batch_size"), count(*batch, "seq_length"),
               count(*batch, "packed_sequence_size")};
  if (const auto rows = view.find("rows")) s.rows = rows_from(*rows);
  if (const auto sets = view.find("validation_rows")) s.validation_rows = validation_rows_from(*sets);
  if (const auto moment = view.find("moment")) s.moment = moment_from(*moment);
  if (const auto stopping = view.find("early_stopping")) s.early_stopping = early_stopping_from(*stopping);
  check_possible(file.string(), s);
  return s;
}

std::optional<Origin> read_origin(const std::filesystem::path& file) {
  const Json json = read_json_file(file);
  const auto origin = JsonView(json, file.string()).find("origin");
  if (!origin) return std::nullopt;
  return Origin{std::string(origin->at("program").string()), count(*origin, "serial"),
                std::string(origin->at("parent").string()), count(*origin, "parent_steps")};
}

RankLayout read_rank_layout(const std::filesystem::path& file) {
  const Json json = read_json_file(file);
  const auto layout = JsonView(json, file.string()).find("layout");
  if (!layout) return {};
  const JsonView zero = layout->at("zero");
  if (zero.integer() < 0 || zero.integer() > static_cast<int>(ZeroLevel::parameters))
    zero.refuse("an integer from 0 to 3");
  RankLayout read;
  read.zero = static_cast<ZeroLevel>(zero.integer());
  GridSizes& grid = read.grid;
  grid.dp_shard = count(*layout, "dp_shard");
  grid.dp_replicate = count(*layout, "dp_replicate");
  for (const auto& [name, size] : model_sizes)
    if (layout->find(name)) grid.*size = count(*layout, name);
  if (layout->find("first_rank")) grid.first_rank = count(*layout, "first_rank");
  if (const auto stages = layout->find("stages")) read.stages = stages->string();
  std::int64_t rest = count(*layout, "ranks");
  for (const std::int64_t size : {grid.tp, grid.cp, grid.dp_shard, grid.dp_replicate, grid.pp})
    rest = size > 0 && rest % size == 0 ? rest / size : 0;
  if (rest != 1) layout->at("ranks").refuse("the product of tp, cp, dp_shard, dp_replicate and pp");
  return read;
}

}  // namespace nemocube
