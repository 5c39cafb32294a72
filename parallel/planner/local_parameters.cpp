#include "parallel/planner/local_parameters.h"

#include <algorithm>
#include <numeric>

#include "parallel/parallel_model/parallel_model.h"

namespace nemocube {
namespace {

std::int64_t sum_of_sizes(const std::vector<Range>& ranges) {
  return std::accumulate(ranges.begin(), ranges.end(), std::int64_t{0},
                         [](std::int64_t sum, const Range& r) { return sum + r.size(); });
}

std::int64_t ranks_that_divide(const GridSizes& grid, ZeroLevel level, bool expert) {
  return expert ? grid.expt_dp() : level == ZeroLevel::none ? grid.dp() * grid.cp : grid.dp_shard * grid.cp;
}

void lay_out(LocalFlat& flat, const ParallelPlan& plan) {
  std::vector<std::int64_t> counts;
  for (const LocalFlat::Piece& piece : flat.pieces) counts.push_back(piece.count);
  if (plan.grid.ranks() == 1) {
    std::exclusive_scan(counts.begin(), counts.end(), counts.begin(), std::int64_t{0});
    for (std::size_t i = 0; i < counts.size(); ++i) flat.pieces[i].start = counts[i];
    flat.size = flat.shard = flat.pieces.back().start + flat.pieces.back().count;
    return;
  }
  const FlatLayout layout(counts, ranks_that_divide(plan.grid, plan.data.level, flat.expert));
  for (std::size_t i = 0; i < counts.size(); ++i) flat.pieces[i].start = layout.starts[i];
  flat.size = layout.size;
  flat.shard = layout.shard;
}

}  // namespace

Group LocalFlat::shard_group(ZeroLevel level) const {
  return expert ? Group::expt_dp : level == ZeroLevel::none ? Group::dp_cp : Group::dp_shard_cp;
}

Range LocalFlat::own(ZeroLevel level, std::int64_t position) const {
  return level == ZeroLevel::none ? Range{0, size} : Range{position * shard, (position + 1) * shard};
}

ModelParts::ModelParts(const ModelSetup& setup, const ParallelPlan& plan, DType dtype)
    : plan_(plan),
      dtype_(dtype),
      copies_embeddings_(copies_embeddings(plan, setup)),
      specs_(tensor_specs(setup)),
      cuts_(setup, TensorParallelPlan(setup, plan.sequence_parallel, plan.tensor_rules), plan.grid) {}

const LocalParameters& ModelParts::of(const GridPlace& place) {
  const auto key = std::pair(place.tp, place.pp);
  const auto found = parts_.find(key);
  return found != parts_.end() ? found->second : parts_.emplace(key, make(place)).first->second;
}

LocalParameters ModelParts::make(const GridPlace& place) const {
  const ModelPart part{plan_.pipeline.chunks_of(place.pp), {}, copies_embeddings_};
  LocalParameters local;
  for (const TensorSpec& spec : specs_) {
    if (!part.has(spec.id)) continue;
    TensorCut cut = cuts_(spec, place);
    if (copies_embeddings_ && spec.id == embeddings_name() / "weight")
      cut = with_copy_at_end(std::move(cut), place);
    const std::int64_t count = cut.shard.numel();
    const DType dtype = spec.keep_f32 ? accumulate_dtype(dtype_) : dtype_;
    local.elements += count;
    if (spec.buffer) {
      local.buffer_bytes += count * size_of(dtype);
      local.counted_buffers += sum_of_sizes(cut.counted);
      continue;
    }
    const auto block = unit_of(spec.id);
    LocalUnit& unit = block ? local.blocks[*block] : local.root;
    auto flat = std::ranges::find_if(unit.flats, [&](const LocalFlat& f) {
      return f.expert == cut.expert && f.dtype == dtype && f.trained == !spec.frozen;
    });
    if (flat == unit.flats.end()) flat = unit.flats.insert(flat, {cut.expert, dtype, !spec.frozen, {}});
    flat->pieces.push_back({0, count, cut.counted});
    if (cut.sum && !spec.frozen) unit.partial[*cut.sum] += sum_of_sizes(cut.summed);
  }
  for (LocalFlat& flat : local.root.flats) lay_out(flat, plan_);
  for (auto& [block, unit] : local.blocks)
    for (LocalFlat& flat : unit.flats) lay_out(flat, plan_);
  return local;
}

}  // namespace nemocube
