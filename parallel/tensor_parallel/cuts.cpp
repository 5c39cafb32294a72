#include "parallel/tensor_parallel/cuts.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "core/log.h"
#include "model/blocks/block_type.h"

namespace nemocube {
namespace {

bool is_shared(const Division& d) { return d.shared != SharedHeads::none; }

bool divides(const Division& d, std::int64_t ranks) {
  return d.value % ranks == 0 || (is_shared(d) && ranks % d.value == 0);
}

/// A size that ranks divide, and whose blocks have it.
struct Divided {
  Division size;
  std::string of;  ///< see of_block()
};

/// "1, 2 or 4", the first twelve numbers of ranks that divide all.
std::string sizes_that_fit(const std::vector<Divided>& divided) {
  std::int64_t most = 1;
  for (const Divided& d : divided) most = std::max(most, d.size.value);
  std::vector<std::int64_t> fit;
  for (std::int64_t n = 1; n <= most && fit.size() <= 12; ++n)
    if (std::ranges::all_of(divided, [n](const Divided& d) { return divides(d.size, n); })) fit.push_back(n);
  if (fit.size() == 1) return "1";
  std::string text;
  for (std::size_t i = 0; i + 1 < fit.size(); ++i) text += cat(i > 0 ? ", " : "", fit[i]);
  return fit.size() > 12 ? text + ", ..." : cat(text, " or ", fit.back());
}

void check_divisions(const char* key, std::int64_t ranks, const std::vector<Divided>& divided) {
  for (const auto& [d, of] : divided)
    if (!divides(d, ranks))
      fail(key, " is ", ranks, "; ", d.key, of, " is ", d.value, "; want a divisor",
           is_shared(d) ? " or a multiple" : "", ". Sizes that fit this model: ", sizes_that_fit(divided));
}

void append_range(std::vector<Range>& ranges, Range next) {
  if (!ranges.empty() && ranges.back().end == next.begin)
    ranges.back().end = next.end;
  else
    ranges.push_back(next);
}

std::vector<Range> all_elements(const Shard& shard) {
  return shard.numel() > 0 ? std::vector{Range{0, shard.numel()}} : std::vector<Range>{};
}

/// A part that no other rank of the stage's tp or expert ranks has.
TensorCut unshared(Shard shard) {
  TensorCut cut;
  cut.counted = all_elements(shard);
  cut.shard = std::move(shard);
  return cut;
}

/// How many neighbouring ranks hold the same heads.
std::int64_t neighbours_with_same(std::int64_t heads, std::int64_t tp) {
  return tp % heads == 0 ? tp / heads : 1;
}

/// The blocks of a model, by the names of their kinds.
std::vector<BlockVariant> variants_of(const ModelSetup& setup) {
  std::vector<BlockVariant> variants = setup.variants();
  std::ranges::stable_sort(variants, {}, [](const BlockVariant& v) { return name_of(v.kind); });
  return variants;
}

/// For messages: " of block 3", or " of model.layers.3.mlp" where a layer of the files is several blocks;
/// nothing where all blocks of the kind have the common sizes.
std::string place_of_sizes(const ModelConfig& config, const BlockVariant& variant) {
  if (!config.names.layered() || config.own_configs.empty()) return of_block(variant.own);
  for (std::int64_t block = 0; block < config.num_layers(); ++block)
    if (variant.own ? block == *variant.own
                    : config.blocks[static_cast<std::size_t>(block)] == variant.kind &&
                          !config.own_configs.contains(block))
      return cat(" of ", config.text(mixer_name(block)));
  return {};
}

/// What the blocks of a model want divided where the plan cuts them.
std::vector<Divided> divisions_of(const ModelSetup& setup, const TensorParallelPlan& plan) {
  const ModelConfig& config = setup.config;
  std::vector<Divided> all;
  for (const BlockVariant& variant : variants_of(setup)) {
    const auto has_sizes = [&](const TensorName& module) {
      const auto block = module.block_of_model();
      return variant.own ? block == variant.own : !block || !config.own_configs.contains(*block);
    };
    for (const Division& d : variant.kind->divisions(*variant.config))
      if (plan.cuts_any(d.module, has_sizes)) all.push_back({d, place_of_sizes(config, variant)});
  }
  return all;
}

Group sum_over(SharedHeads shared) {
  return shared == SharedHeads::key_value ? Group::kv_replicas : Group::state_replicas;
}

}  // namespace

HeadReplicas head_replicas(const ModelSetup& setup, const TensorParallelPlan& plan, std::int64_t tp) {
  HeadReplicas r;
  // All blocks of a model use the same groups of ranks that share heads.
  std::map<SharedHeads, Divided> first;
  for (const Divided& d : divisions_of(setup, plan)) {
    if (!is_shared(d.size)) continue;
    const Divided& before = first.try_emplace(d.size.shared, d).first->second;
    const std::int64_t same = neighbours_with_same(d.size.value, tp),
                       same_before = neighbours_with_same(before.size.value, tp);
    require(same == same_before, "distributed.tp_size is ", tp, "; ", d.size.key, before.of, " is ",
            before.size.value, ", which puts a head on ", counted(same_before, "rank"), "; ", d.size.key,
            d.of, " is ", d.size.value, ", which puts a head on ", counted(same, "rank"),
            "; want the same number in all blocks, as a tp_size of at most ",
            std::min(d.size.value, before.size.value), " gives");
    (d.size.shared == SharedHeads::key_value ? r.kv : r.state) = same;
  }
  return r;
}

Range vocabulary_range(std::int64_t vocabulary, std::int64_t ranks, std::int64_t rank) {
  const std::int64_t most = (vocabulary + ranks - 1) / ranks;
  return {std::min(rank * most, vocabulary), std::min((rank + 1) * most, vocabulary)};
}

TensorCuts::TensorCuts(const ModelSetup& setup, TensorParallelPlan plan, const GridSizes& sizes)
    : config_(setup.config), plan_(std::move(plan)), sizes_(sizes) {
  check_divisions("distributed.tp_size", sizes.tp, divisions_of(setup, plan_));
  if (setup.expert_layers() == 0) {
    for (const auto& [key, ranks] : {std::pair{"ep_size", sizes.ep}, {"expert_tp_size", sizes.expt_tp}})
      require(ranks == 1, "distributed.", key, " is ", ranks,
              ", but the model has no experts; want 1, or no such key");
    return;
  }
  std::vector<Divided> widths, counts;
  for (const BlockVariant& variant : variants_of(setup)) {
    if (!variant.kind->cores(*variant.config).experts) continue;
    const std::string of = place_of_sizes(config_, variant);
    widths.push_back({{"moe_intermediate_size", variant.config->moe.intermediate_size, {}}, of});
    counts.push_back({{"n_routed_experts", variant.config->moe.n_routed_experts, {}}, of});
  }
  check_divisions("distributed.expert_tp_size", sizes.expt_tp, widths);
  check_divisions("distributed.ep_size", sizes.ep, counts);
}

TensorCut TensorCuts::by_columns(const TensorSpec& spec, std::int64_t tp_rank) const {
  const std::int64_t width = spec.shape.numel() / spec.shape[0];  // elements of a row
  TensorCut cut;
  std::vector<Range> rows;
  std::int64_t at = 0;  // elements so far
  std::int64_t row = 0;
  for (const RowSegment& segment : segments(spec, spec.shape[0])) {
    // With fewer heads than ranks, neighbours hold the same.
    const std::int64_t parts = segment.heads > 0 ? std::min(sizes_.tp, segment.heads) : sizes_.tp,
                       holders = sizes_.tp / parts;
    rows.push_back(even_part({row, row + segment.rows}, parts, tp_rank / holders));
    row += segment.rows;
    const Range local{at, at + rows.back().size() * width};
    at = local.end;
    if (holders > 1) append_range(cut.summed, local);
    if (tp_rank % holders == 0) append_range(cut.counted, local);
  }
  if (!cut.summed.empty()) cut.sum = sum_over(spec.cut->shared);
  cut.shard = Shard(spec.shape).cut(0, rows);
  return cut;
}

std::vector<RowSegment> TensorCuts::segments(const TensorSpec& spec, std::int64_t rows) const {
  return spec.cut->segments ? spec.cut->segments(config_.of_tensor(spec.id)) : std::vector{RowSegment{rows}};
}

TensorCut TensorCuts::expert(const TensorSpec& spec, int width_dim, const GridPlace& place) const {
  Shard shard = Shard(spec.shape).cut(0, even_part({0, spec.shape[0]}, sizes_.ep, place.ep));
  if (width_dim >= 0) {
    std::vector<Range> parts;
    std::int64_t first = 0;
    for (const RowSegment& segment : segments(spec, spec.shape[width_dim])) {
      parts.push_back(even_part({first, first + segment.rows}, sizes_.expt_tp, place.expt_tp));
      first += segment.rows;
    }
    shard = shard.cut(width_dim, parts);
  }
  TensorCut cut = unshared(std::move(shard));
  cut.expert = true;
  if (width_dim < 0 && sizes_.expt_tp > 1) {
    cut.sum = Group::expt_tp;
    cut.summed = cut.counted;
    if (place.expt_tp > 0) cut.counted.clear();
  }
  return cut;
}

TensorCut TensorCuts::whole(const TensorSpec& spec, std::int64_t tp_rank, bool partial) const {
  TensorCut cut;
  cut.shard = Shard(spec.shape);
  const std::vector<Range> all = all_elements(cut.shard);
  if (tp_rank == 0) cut.counted = all;
  if (partial && sizes_.tp > 1 && !spec.buffer) {
    cut.sum = Group::tp;
    cut.summed = all;
  }
  return cut;
}

TensorCut TensorCuts::factor(const TensorSpec& spec, const GridPlace& place) const {
  const bool is_a = spec.factor == LoraFactor::a;
  const TensorStyle style = plan_.style(spec);
  switch (style) {
    case TensorStyle::replicated:
      return whole(spec, place.tp, false);
    case TensorStyle::sequence_parallel:
      return whole(spec, place.tp, plan_.sequence_parallel() || spec.cut->always_own_rows);
    case TensorStyle::colwise:
      return is_a ? whole(spec, place.tp, true) : by_columns(spec, place.tp);
    case TensorStyle::vocab_parallel:
      return is_a ? whole(spec, place.tp, true)
                  : unshared(Shard(spec.shape).cut(0, vocabulary_range(spec.shape[0], sizes_.tp, place.tp)));
    case TensorStyle::rowwise:
      return is_a ? unshared(Shard(spec.shape).cut(1, even_part({0, spec.shape[1]}, sizes_.tp, place.tp)))
                  : whole(spec, place.tp, true);
    case TensorStyle::expert_colwise:
      return expert(spec, is_a ? -1 : 1, place);
    case TensorStyle::expert_rowwise:
      return expert(spec, is_a ? 2 : -1, place);
  }
  throw std::logic_error("tensor style");
}

TensorCut TensorCuts::operator()(const TensorSpec& spec, const GridPlace& place) const {
  if (spec.factor != LoraFactor::none) return factor(spec, place);
  const bool cut_stream = plan_.sequence_parallel();
  // The gradient of a bias behind the sum over ranks is of the rank's rows. Before a sum that mixers share it
  // is of all rows.
  const bool own_rows_of_bias = cut_stream && !(config_.shares_sum(spec.id) && spec.cut->added_last);
  switch (plan_.style(spec)) {
    case TensorStyle::replicated:
      return whole(spec, place.tp, own_rows_of_bias && spec.cut->added_last);
    case TensorStyle::sequence_parallel:
      return whole(spec, place.tp, cut_stream || spec.cut->always_own_rows);
    case TensorStyle::colwise:
      return spec.cut->of_each_head ? whole(spec, place.tp, true) : by_columns(spec, place.tp);
    case TensorStyle::rowwise:
      if (spec.shape.ndim() == 1) return whole(spec, place.tp, own_rows_of_bias);
      return unshared(Shard(spec.shape).cut(1, even_part({0, spec.shape[1]}, sizes_.tp, place.tp)));
    case TensorStyle::vocab_parallel:
      return unshared(Shard(spec.shape).cut(0, vocabulary_range(spec.shape[0], sizes_.tp, place.tp)));
    case TensorStyle::expert_colwise:
      return expert(spec, 1, place);
    case TensorStyle::expert_rowwise:
      return expert(spec, 2, place);
  }
  throw std::logic_error("tensor style");
}

}  // namespace nemocube
