#include "parallel/tensor_parallel/cuts.h"

#include <algorithm>
#include <array>

namespace nemocube {
namespace {

constexpr const char* attention_input = ".mixer.q_proj";
constexpr const char* mamba_input = ".mixer.in_proj";

/// A size of the model that a size of the grid divides.
struct Division {
  const char* key;
  std::int64_t value;
  bool replicable = false;  // more ranks than `value` may share each one

  bool by(std::int64_t ranks) const { return value % ranks == 0 || (replicable && ranks % value == 0); }
};

/// "1, 2 or 4", the first twelve numbers of ranks that divide all.
std::string sizes_that_fit(const std::vector<Division>& divisions) {
  std::int64_t most = 1;
  for (const Division& d : divisions) most = std::max(most, d.value);
  std::vector<std::int64_t> fit;
  for (std::int64_t n = 1; n <= most && fit.size() <= 12; ++n)
    if (std::ranges::all_of(divisions, [n](const Division& d) { return d.by(n); })) fit.push_back(n);
  if (fit.size() == 1) return "1";
  std::string text;
  for (std::size_t i = 0; i + 1 < fit.size(); ++i) text += cat(i > 0 ? ", " : "", fit[i]);
  return fit.size() > 12 ? text + ", ..." : cat(text, " or ", fit.back());
}

void check_divisions(const char* key, std::int64_t ranks, const std::vector<Division>& divisions) {
  for (const Division& d : divisions)
    require(d.by(ranks), key, " is ", ranks, "; ", d.key, " is ", d.value, "; want a divisor",
            d.replicable ? " or a multiple" : "", ". Sizes that fit this model: ", sizes_that_fit(divisions));
}

/// Part `index` of `parts` equal ones.
Range even_part(Range whole, std::int64_t parts, std::int64_t index) {
  const std::int64_t size = whole.size() / parts;
  return {whole.begin + index * size, whole.begin + (index + 1) * size};
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

/// A bias that Linear adds after the output transform: to this rank's rows only, where the residual stream is cut.
bool added_last(std::string_view tensor) {
  return tensor.ends_with(".down_proj.bias") || tensor.ends_with(".out_proj.bias");
}

}  // namespace

std::string_view name_of(GradientSum sum) {
  constexpr std::array<std::string_view, 4> names{"none", "tp", "kv_replicas", "state_replicas"};
  return names[static_cast<std::size_t>(sum)];
}

HeadReplicas head_replicas(const NemotronHConfig& config, const TensorParallelPlan& plan, std::int64_t tp) {
  HeadReplicas r;
  if (plan.cuts_any(attention_input)) r.kv = neighbours_with_same(config.num_key_value_heads, tp);
  if (plan.cuts_any(mamba_input)) r.state = neighbours_with_same(config.n_groups, tp);
  return r;
}

Range vocabulary_range(std::int64_t vocabulary, std::int64_t ranks, std::int64_t rank) {
  const std::int64_t most = (vocabulary + ranks - 1) / ranks;
  return {std::min(rank * most, vocabulary), std::min((rank + 1) * most, vocabulary)};
}

TensorCuts::TensorCuts(const NemotronHConfig& config, TensorParallelPlan plan, const GridSizes& sizes)
    : config_(config), plan_(std::move(plan)), sizes_(sizes) {
  std::vector<Division> dense;
  if (plan_.cuts_any(attention_input)) {
    dense.push_back({"num_attention_heads", config.num_attention_heads});
    dense.push_back({"num_key_value_heads", config.num_key_value_heads, true});
  }
  if (plan_.cuts_any(mamba_input)) {
    dense.push_back({"mamba_num_heads", config.mamba_num_heads});
    dense.push_back({"n_groups", config.n_groups, true});
  }
  if (plan_.cuts_any(".mixer.up_proj")) dense.push_back({"intermediate_size", config.intermediate_size});
  if (plan_.cuts_any(".shared_experts.up_proj"))
    dense.push_back({"moe_shared_expert_intermediate_size", config.moe_shared_expert_intermediate_size});
  check_divisions("distributed.tp_size", sizes.tp, dense);
  if (config.count(BlockKind::moe) == 0) return;
  check_divisions("distributed.expert_tp_size", sizes.expt_tp,
                  {{"moe_intermediate_size", config.moe_intermediate_size}});
  check_divisions("distributed.ep_size", sizes.ep, {{"n_routed_experts", config.n_routed_experts}});
}

/// Rows that are cut into `parts` equal parts, on their own. With fewer parts than ranks, neighbours hold the same.
struct TensorCuts::Segment {
  Range rows;
  std::int64_t parts;
};

std::vector<TensorCuts::Segment> TensorCuts::segments(const TensorSpec& spec) const {
  const std::int64_t t = sizes_.tp;
  const auto is = [&](std::string_view module) { return spec.name.find(module) != std::string::npos; };
  if (is(".k_proj.") || is(".v_proj."))
    return {{{0, spec.shape[0]}, std::min(t, config_.num_key_value_heads)}};
  const bool projection = is(".in_proj.");
  if (!projection && !is(".conv1d.")) return {{{0, spec.shape[0]}, t}};
  std::vector<Segment> all;
  const auto add = [&](std::int64_t rows, std::int64_t parts) {
    const std::int64_t begin = all.empty() ? 0 : all.back().rows.end;
    all.push_back({{begin, begin + rows}, parts});
  };
  const std::int64_t groups = std::min(t, config_.n_groups);
  if (projection) add(config_.mamba_inner(), t);    // z
  add(config_.mamba_inner(), t);                    // x
  add(config_.state_width(), groups);               // B
  add(config_.state_width(), groups);               // C
  if (projection) add(config_.mamba_num_heads, t);  // dt
  return all;
}

TensorCut TensorCuts::by_columns(const TensorSpec& spec, std::int64_t tp_rank) const {
  const std::int64_t width = spec.shape.numel() / spec.shape[0];  // elements of a row
  TensorCut cut;
  std::vector<Range> rows;
  std::int64_t at = 0;  // elements so far
  const std::vector<Segment> all = segments(spec);
  for (const Segment& segment : all) {
    const std::int64_t holders = sizes_.tp / segment.parts;
    rows.push_back(even_part(segment.rows, segment.parts, tp_rank / holders));
    const Range local{at, at + rows.back().size() * width};
    at = local.end;
    if (holders > 1) append_range(cut.summed, local);
    if (tp_rank % holders == 0) append_range(cut.counted, local);
  }
  if (!cut.summed.empty())  // only Mamba stacks several segments
    cut.sum = all.size() > 1 ? GradientSum::state_replicas : GradientSum::kv_replicas;
  cut.shard = Shard(spec.shape).cut(0, rows);
  return cut;
}

TensorCut TensorCuts::expert(const TensorSpec& spec, int width_dim, const GridPlace& place) const {
  const Range experts = even_part({0, spec.shape[0]}, sizes_.ep, place.ep),
              channels = even_part({0, spec.shape[width_dim]}, sizes_.expt_tp, place.expt_tp);
  TensorCut cut = unshared(Shard(spec.shape).cut(0, experts).cut(width_dim, channels));
  cut.expert = true;
  return cut;
}

TensorCut TensorCuts::whole(const TensorSpec& spec, std::int64_t tp_rank, bool partial) const {
  TensorCut cut;
  cut.shard = Shard(spec.shape);
  const std::vector<Range> all = all_elements(cut.shard);
  if (tp_rank == 0) cut.counted = all;
  if (partial && sizes_.tp > 1 && !spec.buffer) {
    cut.sum = GradientSum::tp;
    cut.summed = all;
  }
  return cut;
}

TensorCut TensorCuts::operator()(const TensorSpec& spec, const GridPlace& place) const {
  const bool cut_stream = plan_.sequence_parallel();
  switch (plan_.style(spec.name)) {
    case TensorStyle::replicated:
      return whole(spec, place.tp, cut_stream && added_last(spec.name));
    case TensorStyle::sequence_parallel:
      return whole(spec, place.tp, cut_stream || spec.name.find(".mixer.") != std::string::npos);
    case TensorStyle::colwise:
      return by_columns(spec, place.tp);
    case TensorStyle::rowwise:
      if (spec.shape.ndim() == 1) return whole(spec, place.tp, cut_stream);  // the bias
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
