#include "tests/grids/grid_cases.h"

#include "core/error.h"

namespace nemocube::testing {
namespace {

using enum ZeroLevel;
using enum DispatcherKind;
using enum ContextAttention;
using enum ScheduleKind;

// clang-format off
const std::vector<GridCase> cases{
    // 2 ranks
    {.grid = {.tp = 2}, .always = true},
    {.grid = {.tp = 2}, .sequence_parallel = true, .checkpointing = true, .always = true},
    {.grid = {.tp = 2, .ep = 2}, .dispatcher = allgather, .whole_head = true},
    {.grid = {.tp = 2, .expt_tp = 2}, .sequence_parallel = true, .dispatcher = allgather, .whole_head = true},
    {.grid = {.tp = 2, .expt_tp = 2}, .packed = false},
    {.grid = {.cp = 2}, .always = true},
    {.grid = {.cp = 2, .ep = 2}, .level = none, .attention = ContextAttention::all_gather, .packed = false, .always = true},
    {.grid = {.pp = 2}, .always = true},
    {.grid = {.pp = 2}, .schedule = gpipe, .packed = false, .checkpointing = true},
    {.grid = {.pp = 2}, .schedule = interleaved_1f1b, .chunks = 2},
    {.grid = {.pp = 2}, .schedule = interleaved_1f1b, .chunks = 4, .checkpointing = true},
    {.grid = {.pp = 2}, .schedule = interleaved_zero_bubble, .chunks = 2, .always = true},
    {.grid = {.pp = 2}, .schedule = zbv, .chunks = 2, .packed = false, .checkpointing = true, .always = true},
    {.grid = {.dp_shard = 2, .ep = 2}, .level = parameters, .always = true},
    {.grid = {.dp_shard = 2, .ep = 2}, .level = none, .dispatcher = allgather, .always = true},
    {.grid = {.dp_shard = 2, .expt_tp = 2}, .level = optimizer},
    // 4 ranks
    {.grid = {.tp = 4}, .sequence_parallel = true, .always = true},
    {.grid = {.tp = 4, .ep = 4}},
    {.grid = {.tp = 4, .expt_tp = 2, .ep = 2}, .sequence_parallel = true, .checkpointing = true},
    {.grid = {.tp = 2, .cp = 2}, .sequence_parallel = true, .always = true},
    {.grid = {.tp = 2, .cp = 2, .ep = 2}, .attention = ContextAttention::all_gather, .checkpointing = true},
    {.grid = {.cp = 4}, .packed = false},
    {.grid = {.cp = 4, .ep = 2}, .level = gradients, .attention = ContextAttention::all_gather},
    {.grid = {.tp = 2, .pp = 2}, .sequence_parallel = true, .schedule = one_f_one_b, .always = true},
    {.grid = {.tp = 2, .pp = 2, .ep = 2}, .schedule = zbv, .chunks = 2},
    {.grid = {.cp = 2, .pp = 2}, .schedule = interleaved_1f1b, .chunks = 2},
    {.grid = {.pp = 4}, .schedule = one_f_one_b, .always = true},
    {.grid = {.pp = 4}, .schedule = interleaved_1f1b, .chunks = 2, .checkpointing = true},
    {.grid = {.pp = 4}, .schedule = interleaved_zero_bubble, .chunks = 2},
    {.grid = {.pp = 4}, .schedule = zbv, .chunks = 2, .packed = false},
    {.grid = {.pp = 4}, .schedule = gpipe},
    {.grid = {.dp_shard = 2, .pp = 2, .ep = 2}, .schedule = interleaved_1f1b, .chunks = 2, .always = true},
    {.grid = {.dp_shard = 2, .pp = 2, .ep = 2}, .level = gradients, .schedule = zbv, .chunks = 2, .checkpointing = true},
    {.grid = {.dp_shard = 4, .ep = 4}, .checkpointing = true, .always = true},
    {.grid = {.dp_shard = 4, .ep = 2}, .level = optimizer, .dispatcher = allgather},
    {.grid = {.dp_shard = 2, .dp_replicate = 2, .ep = 2}, .level = parameters},
    {.grid = {.dp_shard = 4, .expt_tp = 2, .ep = 2}, .level = none},
    {.grid = {.tp = 2, .dp_shard = 2, .ep = 2}, .sequence_parallel = true, .always = true},
    {.grid = {.tp = 2, .dp_shard = 2, .expt_tp = 2, .ep = 2}, .level = gradients, .dispatcher = allgather},
    {.grid = {.tp = 2, .dp_shard = 2}, .level = optimizer, .packed = false, .whole_head = true},
    {.grid = {.cp = 2, .dp_shard = 2, .ep = 4}, .checkpointing = true},
    // 8 ranks
    {.grid = {.tp = 2, .cp = 2, .dp_shard = 2, .ep = 4}, .sequence_parallel = true},
    {.grid = {.tp = 2, .dp_shard = 2, .pp = 2, .ep = 2}, .sequence_parallel = true, .schedule = interleaved_1f1b, .chunks = 2, .always = true},
    {.grid = {.tp = 2, .cp = 2, .pp = 2, .ep = 2}, .schedule = zbv, .chunks = 2, .checkpointing = true, .always = true},
    {.grid = {.dp_shard = 2, .pp = 4, .ep = 2}, .schedule = interleaved_1f1b, .chunks = 2, .checkpointing = true, .always = true},
    {.grid = {.cp = 4, .pp = 2, .ep = 4}, .sequence_parallel = false, .schedule = interleaved_zero_bubble, .chunks = 2},
    {.grid = {.tp = 4, .dp_shard = 2, .expt_tp = 2, .ep = 2}, .sequence_parallel = true, .level = optimizer},
    {.grid = {.dp_shard = 2, .dp_replicate = 2, .pp = 2, .ep = 2}, .schedule = one_f_one_b},
    {.grid = {.tp = 4, .cp = 2, .expt_tp = 4}, .sequence_parallel = true, .dispatcher = allgather},
    // 16 ranks
    {.grid = {.tp = 2, .cp = 2, .dp_shard = 2, .pp = 2, .expt_tp = 2, .ep = 2}, .sequence_parallel = true, .schedule = interleaved_1f1b, .chunks = 2},
    {.grid = {.tp = 4, .pp = 4, .ep = 2}, .sequence_parallel = true, .schedule = zbv, .chunks = 2},
    {.grid = {.dp_shard = 4, .pp = 4, .ep = 4}, .level = none, .schedule = interleaved_zero_bubble, .chunks = 2},
    {.grid = {.tp = 2, .cp = 4, .dp_shard = 2, .ep = 4}, .level = gradients, .checkpointing = true},
};
// clang-format on

}  // namespace

std::string name_of(const GridCase& c) {
  constexpr const char* levels[] = {"ddp", "ZeRO-1", "ZeRO-2", "ZeRO-3"};
  constexpr const char* dispatchers[] = {"local", "allgather", "alltoall"};
  std::string name = cat(to_string(c.grid), ", ", levels[static_cast<int>(c.level)], ", ",
                         dispatchers[static_cast<int>(c.dispatcher)]);
  if (c.grid.dp_replicate > 1) name += cat(", dp_replicate ", c.grid.dp_replicate);
  if (c.sequence_parallel) name += ", sequence parallel";
  if (c.grid.cp > 1) name += c.attention == ring ? ", ring" : ", all-gathered keys";
  if (c.grid.pp > 1) name += cat(", ", name_of(c.schedule), " of ", c.chunks, " chunks");
  name += c.packed ? ", packed" : "";
  name += c.checkpointing ? ", checkpointing" : "";
  name += c.whole_head ? ", whole head" : "";
  return name;
}

std::vector<GridCase> grid_cases(std::int64_t ranks, const std::string& wish) {
  const auto wished = [&](const GridCase& c) {
    return wish.empty() ? c.always : wish == "all" || name_of(c).find(wish) != std::string::npos;
  };
  std::vector<GridCase> chosen;
  for (const GridCase& c : cases)
    if (c.grid.ranks() == ranks && wished(c)) chosen.push_back(c);
  return chosen;
}

}  // namespace nemocube::testing
