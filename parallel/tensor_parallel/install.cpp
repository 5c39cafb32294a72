#include "parallel/tensor_parallel/install.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/range.h"
#include "model/blocks/attention/attention.h"
#include "model/blocks/mamba/mamba.h"
#include "parallel/tensor_parallel/cuts.h"

namespace nemocube {
namespace {

class GroupReduction final : public RankReduction {
 public:
  explicit GroupReduction(Communicator& group) : group_(group) {}
  void max(const Tensor& rows) override { group_.all_reduce(rows, Reduction::max); }
  void sum(const Tensor& rows) override { group_.all_reduce(rows, Reduction::sum); }

 private:
  Communicator& group_;
};

/// What sequences keep of even_part_of_rows().
struct EvenPart {
  Sequences rows;
  /// See Sequences::become(): the part has tables of its own.
  void refill(const EvenPart& made) { rows.become(made.rows); }
};

}  // namespace

Sequences even_part_of_rows(const Sequences& rows, std::int64_t ranks, std::int64_t rank) {
  const auto make = [ranks, rank](const Sequences& all) {
    const Range part = even_part({0, all.tokens()}, ranks, rank);
    std::vector<std::int64_t> offsets = all.offsets();
    for (std::int64_t& offset : offsets)
      offset = std::clamp<std::int64_t>(offset - part.begin, 0, part.size());
    const auto first = all.positions().begin() + part.begin;
    return EvenPart{Sequences(std::move(offsets), {first, first + part.size()}, all.last())
                        .numbered(all.numbers(), all.padded_length())};
  };
  return rows.derived<EvenPart>(Device::cpu, {ranks, rank}, make).rows;  // numbers for the host
}

TensorParallel::TensorParallel(Stack& model, const TensorParallelPlan& plan, const ProcessGroups& groups,
                               RowCut group_rows)
    : tp_(groups[Group::tp]),
      sequence_parallel_(plan.sequence_parallel()),
      cuts_head_(tp_.size() > 1 && plan.style(model.config().head_module()) == TensorStyle::vocab_parallel),
      group_rows_(std::move(group_rows)) {
  if (tp_.size() > 1 || group_rows_)
    for (MoeMixer* moe : model.moe_layers()) moe->set_rows(rows_at(true));
  if (tp_.size() > 1 || group_rows_) number_rows(model);
  if (tp_.size() == 1) return;
  for (const auto& [name, point] : model.transform_points()) {
    *point.transform = transform_at(plan, point);
    if (point.shared && point.role == PointRole::way_out)
      point.shared->biases_elsewhere = tp_.rank() > 0 && is_cut(plan, point);
  }
  const std::int64_t vocabulary = model.config().vocab_size;
  reductions_.push_back(std::make_unique<GroupReduction>(tp_));
  const VocabularyPart own_tokens{vocabulary_range(vocabulary, tp_.size(), tp_.rank()).begin,
                                  reductions_.back().get()};
  if (cuts_head_ && model.tail()) model.tail()->part = own_tokens;
  if (model.front() && plan.style(embeddings_name()) == TensorStyle::vocab_parallel)
    model.front()->part = own_tokens;
  if (PerLayerInputs* inputs = model.per_layer_inputs();
      inputs && plan.style(per_layer_embeddings_name()) == TensorStyle::vocab_parallel)
    inputs->part = own_tokens;
  for (AttentionMixer* attention : model.mixers<AttentionMixer>())
    if (attention->is_cut()) attention->set_first_head(tp_.rank() * attention->heads());
  share_norm_groups(model, groups[Group::state_replicas]);
}

void TensorParallel::share_norm_groups(Stack& model, Communicator& sharers) {
  if (sharers.size() == 1) return;
  reductions_.push_back(std::make_unique<GroupReduction>(sharers));
  for (MambaMixer* mamba : model.mixers<MambaMixer>())
    if (mamba->is_cut()) mamba->set_norm_part({reductions_.back().get(), sharers.size()});
}

void TensorParallel::number_rows(Stack& model) {
  std::map<TensorName, bool> own_rows;  // by module
  for (const TensorSpec& spec : tensor_specs(model.setup()))
    own_rows.emplace(spec.module,
                     spec.cut->always_own_rows ||
                         (sequence_parallel_ && spec.cut->style == TensorStyle::sequence_parallel));
  // Behind a way out sequence parallelism alone cuts the rows; before a way in a weight's style counts too.
  for (const auto& [name, point] : model.transform_points())
    if (point.rows)
      *point.rows =
          rows_at(point.role == PointRole::way_out ? sequence_parallel_ : own_rows.at(point.module));
}

RowCut TensorParallel::rows_at(bool own) const {
  if (!own) return [this](const Sequences& whole) { return rows_of_group(whole); };
  return [this](const Sequences& whole) {
    return even_part_of_rows(rows_of_group(whole), tp_.size(), tp_.rank());
  };
}

Sequences TensorParallel::rows_of_group(const Sequences& whole) const {
  return group_rows_ ? group_rows_(whole) : whole;
}

std::vector<std::int64_t> TensorParallel::rows_of_ranks(const Sequences& whole) const {
  return even_sizes(rows_of_group(whole).tokens(), tp_.size());
}

std::int64_t TensorParallel::residual_rows(const Sequences& whole) const {
  if (!sequence_parallel_ || tp_.size() == 1) return rows_of_group(whole).tokens();
  return rows_of_ranks(whole)[static_cast<std::size_t>(tp_.rank())];
}

void TensorParallel::gather_vocabulary(const Tensor& logits, const Tensor& own) const {
  if (!cuts_head_) return logits.copy_from(own);
  std::vector<std::int64_t> tokens, counts;
  for (std::int64_t rank = 0; rank < tp_.size(); ++rank) {
    tokens.push_back(vocabulary_range(logits.cols(), tp_.size(), rank).size());
    counts.push_back(logits.rows() * tokens.back());
  }
  const Tensor parts = Tensor::empty({logits.numel()}, logits.dtype(), logits.device());
  tp_.all_gather_v(parts, own, counts);
  std::int64_t at = 0, column = 0;
  for (std::size_t rank = 0; rank < tokens.size(); ++rank) {
    logits.narrow(1, column, tokens[rank])
        .copy_from(parts.narrow(0, at, counts[rank]).reshape({logits.rows(), tokens[rank]}));
    at += counts[rank];
    column += tokens[rank];
  }
}

Transform TensorParallel::by_rows(RowMapping mapping) const {
  return [this, mapping](Context& ctx, const Var& x, const Sequences& whole) {
    return mapping(ctx, x, rows_of_ranks(whole), tp_);
  };
}

Transform TensorParallel::to_all_rows(Consumer consumer) const {
  return [this, consumer](Context& ctx, const Var& x, const Sequences& whole) {
    return all_rows(ctx, x, rows_of_ranks(whole), tp_, consumer);
  };
}

Transform TensorParallel::way_in(bool cut) const {
  if (sequence_parallel_) return to_all_rows(cut ? Consumer::cut : Consumer::replicated);
  if (!cut) return {};
  return [this](Context& ctx, const Var& x, const Sequences&) { return copy_to_ranks(ctx, x, tp_); };
}

Transform TensorParallel::way_out(bool cut) const {
  if (!cut) return sequence_parallel_ ? by_rows(own_rows) : Transform();
  if (sequence_parallel_) return by_rows(sum_to_own_rows);
  return [this](Context& ctx, const Var& x, const Sequences&) { return sum_over_ranks(ctx, x, tp_); };
}

Transform TensorParallel::routed_in(bool in_shared_way) const {
  if (in_shared_way) return by_rows(own_rows_to_sum);
  return sequence_parallel_ ? Transform() : by_rows(own_rows);
}

Transform TensorParallel::routed_out(bool in_shared_way) const {
  if (in_shared_way) return by_rows(own_rows_of_sum);
  return sequence_parallel_ ? Transform() : to_all_rows(Consumer::replicated);
}

bool TensorParallel::is_cut(const TensorParallelPlan& plan, const TransformPoint& point) {
  return plan.style(point.module) != TensorStyle::replicated;
}

Transform TensorParallel::transform_at(const TensorParallelPlan& plan, const TransformPoint& point) const {
  const auto in_shared_way = [&] { return point.shared && (sequence_parallel_ || is_cut(plan, point)); };
  switch (point.role) {
    case PointRole::way_in:
      return way_in(is_cut(plan, point));
    case PointRole::way_out:
      return way_out(is_cut(plan, point));
    case PointRole::routed_in:
      return routed_in(in_shared_way());
    case PointRole::routed_out:
      return routed_out(in_shared_way());
    case PointRole::experts_out:
    case PointRole::other:
      break;
  }
  return {};
}

}  // namespace nemocube
