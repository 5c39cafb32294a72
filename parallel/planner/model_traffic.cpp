#include "parallel/planner/model_traffic.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "core/range.h"
#include "model/blocks/per_layer_input/per_layer_input_block.h"
#include "model/side_boundary.h"
#include "parallel/context_parallel/dealt_heads.h"
#include "parallel/context_parallel/sequence_cut.h"
#include "parallel/expert_parallel/expert_groups.h"

namespace nemocube {
namespace {

std::int64_t sum(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

/// Rows of a context-parallel rank that have a label.
std::int64_t labelled_rows(const SequenceCut& cut, std::int64_t rank, std::int64_t unlabelled) {
  std::int64_t labels = 0;
  for (std::int64_t i = 0; i < cut.whole().count(); ++i)
    for (const Range& chunk : cut.chunks(i, rank))
      labels += std::clamp<std::int64_t>(cut.whole().length(i) - unlabelled - chunk.begin, 0, chunk.size());
  return labels;
}

/// Of a device's `tokens`, how many choices fall on the experts `here`: the choices of all tokens go around
/// the experts.
std::int64_t choices_for(std::int64_t tokens, Range here, const BlockCores::Experts& experts) {
  const std::int64_t choices = tokens * experts.top_k;
  return even_begin(choices, experts.count, here.end) - even_begin(choices, experts.count, here.begin);
}

}  // namespace

ModelTraffic::ModelTraffic(const ModelSetup& setup, const ParallelPlan& plan, const StepLoad& load)
    : setup_(setup), plan_(plan), load_(load) {
  const ModelConfig& config = setup.config;
  const TensorParallelPlan tensor(setup, plan.sequence_parallel, plan.tensor_rules);
  const auto cut = [&](const TensorName& module) { return tensor.style(module) != TensorStyle::replicated; };
  cuts_embeddings_ = cut(embeddings_name());
  if (plan.grid.pp > 1 && !side_rows_by_maker(config).empty()) cuts_.emplace(setup, tensor, plan.grid);
  cuts_head_ = cut(config.head_module());
  if (config.has(per_layer_input_block)) cuts_per_layer_embeddings_ = cut(per_layer_embeddings_name());
  for (std::int64_t i = 0; i < config.num_layers(); ++i) {
    const BlockKind kind = config.blocks[static_cast<std::size_t>(i)];
    const TensorName name = block_name(i);
    const std::string_view entry = kind->entry(config.block(i));
    blocks_.push_back({kind->cores(config.block(i)), !entry.empty(),
                       !entry.empty() && cut(mixer_name(i, entry)), config.shares_norm(name),
                       config.shares_sum(name), config.block(i).residual != Residual::shared_norm,
                       !config.shares_norm_with_next(name)});
  }
  for (std::int64_t i = 0; setup.choices.mtp.depths > 0 && i < std::ssize(config.mtp_blocks); ++i) {
    const BlockKind kind = config.mtp_blocks[static_cast<std::size_t>(i)];
    const std::string_view entry = kind->entry(config.common());
    mtp_blocks_.push_back({kind->cores(config.common()), !entry.empty(),
                           !entry.empty() && cut(mixer_of(depth_name(i)) / entry)});
  }
  for (std::int64_t rank = 0; rank < plan.grid.cp; ++rank) {
    const SequenceCut part(load.microbatch, plan.grid.cp, rank);
    rows_of_cp_.push_back(part.local().tokens());
  }
}

std::int64_t ModelTraffic::routed_rows(std::int64_t tp, std::int64_t cp) const {
  return even_part({0, rows(cp)}, plan_.grid.tp, tp).size();
}

std::int64_t ModelTraffic::residual_rows(const GridPlace& place) const {
  return plan_.sequence_parallel ? routed_rows(place.tp, place.cp) : rows(place.cp);
}

void ModelTraffic::add(RankTraffic& traffic, const GridPlace& place, const Program& program) const {
  const std::int64_t m = load_.microbatches;
  for (const ModelChunk& chunk : plan_.pipeline.chunks_of(place.pp)) {
    const std::vector<BlockPass> passes = block_passes(setup_, chunk);
    if (chunk.embeddings) {
      const bool trained = !setup_.choices.frozen.contains(embeddings_name() / "weight");
      add_way_out(traffic, place, cuts_embeddings_, {m, trained ? m : 0});
      if (const std::int64_t layers = setup_.config.count(per_layer_input_block); layers > 0) {
        const bool trains = !setup_.choices.frozen.contains(per_layer_embeddings_name() / "weight");
        add_way_out(traffic, place, cuts_per_layer_embeddings_, {m, trains ? m : 0},
                    layers * setup_.config.per_layer_input.size);
      }
    }
    bool sum_backward = false;
    for (std::int64_t i = chunk.first_block; i < std::min(chunk.end_block, setup_.config.num_layers()); ++i) {
      const Block& block = blocks_[static_cast<std::size_t>(i)];
      const BlockPass& pass = passes[static_cast<std::size_t>(i - chunk.first_block)];
      sum_backward = (sum_backward && !block.first) || (block.leaves_with_others && pass.backward);
      add_block(traffic, place, block, pass, sum_backward);
    }
    if (!chunk.head) continue;
    add_way_in(traffic, place, cuts_head_, {m, passes.back().input_gradient ? m : 0});
    add_loss(traffic, place, load_.unlabelled);
    add_mtp(traffic, place, chunk);
  }
  add_exchanges(traffic, place, program);
}

void ModelTraffic::add_block(RankTraffic& traffic, const GridPlace& place, const Block& block,
                             const BlockPass& pass, bool sum_backward) const {
  const std::int64_t m = load_.microbatches, backward = pass.backward ? m : 0;
  const Times in_blocks{load_.checkpointing ? m + backward : m, backward};  // forward again before backward
  const std::int64_t input_gradient = pass.input_gradient ? m : 0;
  // What several blocks send together is not sent again.
  if (!block.enters_with_others && block.all_rows)
    add_way_in(traffic, place, block.cut, {in_blocks.forward, input_gradient});
  else if (block.enters_with_others && block.first)
    add_way_in(traffic, place, block.cut, {m, input_gradient});
  if (block.cores.attention) add_attention(traffic, place, *block.cores.attention, block.cut, in_blocks);
  if (block.cores.scan) add_scan(traffic, place, *block.cores.scan, block.cut, in_blocks);
  if (block.cores.experts) add_experts(traffic, place, block, in_blocks);
  if (!block.leaves_with_others && block.all_rows)
    add_way_out(traffic, place, block.cut, in_blocks);
  else if (block.leaves_with_others && block.last)
    add_way_out(traffic, place, block.cut, {m, sum_backward ? m : 0});
}

/// Each depth embeds the rows again and has a loss of its own.
void ModelTraffic::add_mtp(RankTraffic& traffic, const GridPlace& place, const ModelChunk& chunk) const {
  const std::int64_t m = load_.microbatches;
  const bool trains_embeddings = !setup_.choices.frozen.contains(embeddings_name() / "weight");
  std::int64_t unlabelled = load_.unlabelled;
  for (const DepthPasses& depth : mtp_passes(setup_, chunk)) {
    const std::vector<BlockPass>& passes = depth.blocks;
    add_way_out(traffic, place, cuts_embeddings_, {m, trains_embeddings ? m : 0});
    for (std::size_t i = 0; i < mtp_blocks_.size(); ++i) add_block(traffic, place, mtp_blocks_[i], passes[i]);
    add_way_in(traffic, place, cuts_head_, {m, passes.back().input_gradient ? m : 0});
    add_loss(traffic, place, ++unlabelled);
  }
}

/// Sequence parallel gathers rows before a layer, and adds or cuts their gradients. Otherwise all rows are
/// there, and the gradients of a layer that is cut are added.
void ModelTraffic::add_way_in(RankTraffic& traffic, const GridPlace& place, bool cut, Times times) const {
  const std::int64_t own = residual_rows(place) * setup_.config.hidden_size,
                     all = rows(place.cp) * setup_.config.hidden_size;
  if (plan_.sequence_parallel) traffic.all_gather(Group::tp, own, load_.dtype, times.forward);
  if (!cut) return;
  if (plan_.sequence_parallel)
    traffic.reduce_scatter(Group::tp, own, all, load_.dtype, times.backward);
  else
    traffic.all_reduce(Group::tp, all, load_.dtype, times.backward);
}

/// The parts of a layer that is cut are added: to the own rows with sequence parallel, whose gradients are
/// gathered.
void ModelTraffic::add_way_out(RankTraffic& traffic, const GridPlace& place, bool cut, Times times,
                               std::int64_t width) const {
  const std::int64_t own = residual_rows(place) * width, all = rows(place.cp) * width;
  if (plan_.sequence_parallel) {
    if (cut) traffic.reduce_scatter(Group::tp, own, all, load_.dtype, times.forward);
    traffic.all_gather(Group::tp, own, load_.dtype, times.backward);
  } else if (cut) {
    traffic.all_reduce(Group::tp, all, load_.dtype, times.forward);
  }
}

/// Every rank sees the keys and values of all, forward and again in backward, and their gradients are added
/// at the owner.
void ModelTraffic::add_attention(RankTraffic& traffic, const GridPlace& place,
                                 const BlockCores::Attention& attention, bool cut, Times times) const {
  const std::int64_t c = plan_.grid.cp;
  if (c == 1) return;
  const std::int64_t heads =
      cut ? std::max<std::int64_t>(1, attention.kv_heads / plan_.grid.tp) : attention.kv_heads;
  const std::int64_t width = heads * attention.head_dim;
  const DType sums = accumulate_dtype(load_.dtype);
  const std::int64_t own = rows(place.cp) * width, all = sum(rows_of_cp_) * width,
                     walks = times.forward + times.backward;
  if (plan_.context_attention == ContextAttention::all_gather) {
    traffic.all_gather(Group::cp, own, load_.dtype, 2 * walks);
    traffic.reduce_scatter(Group::cp, own, all, sums, 2 * times.backward);
    return;
  }
  // In a ring, a rank passes on the blocks of all but the next one, and the gradients of all but its own.
  for (std::int64_t step = 0; step < c; ++step) {
    const std::int64_t block_size = 2 * width * rows((place.cp - step + c) % c);
    if (step + 1 < c) traffic.exchange(Group::cp, block_size, load_.dtype, walks);
    if (step > 0) traffic.exchange(Group::cp, block_size, sums, times.backward);
  }
}

/// Each rank gets its heads' columns of all rows and returns their results; gradients go the other way.
void ModelTraffic::add_scan(RankTraffic& traffic, const GridPlace& place, const BlockCores::Scan& scan,
                            bool is_cut, Times times) const {
  const std::int64_t c = plan_.grid.cp, t = is_cut ? plan_.grid.tp : 1;
  const std::int64_t heads = scan.heads / t, groups = std::max<std::int64_t>(1, scan.groups / t),
                     own = rows(place.cp);
  // A norm group that several tp ranks share is normalised by one sum over them, forward and backward.
  if (scan.normed && is_cut && own > 0)
    traffic.all_reduce(Group::state_replicas, own * groups, accumulate_dtype(load_.dtype),
                       times.forward + times.backward);
  if (c == 1) return;
  const ScanHeadCut cut = cut_scan_heads(heads, groups, c, scan.words);
  const std::int64_t results = cut.heads * scan.head_dim,
                     inputs = results + 2 * cut.groups * scan.state_size + scan.numbers_of_head * cut.heads,
                     own_to_all = (c - 1) * own, all_to_own = sum(rows_of_cp_) - own;
  traffic.all_to_all(Group::cp, own_to_all * inputs, load_.dtype, times.forward);
  traffic.all_to_all(Group::cp, all_to_own * results, load_.dtype, times.forward);
  traffic.all_to_all(Group::cp, own_to_all * results, load_.dtype, times.backward);
  traffic.all_to_all(Group::cp, all_to_own * inputs, load_.dtype, times.backward);
}

void ModelTraffic::add_experts(RankTraffic& traffic, const GridPlace& place, const Block& block,
                               Times times) const {
  const Experts& experts = *block.cores.experts;
  if (!plan_.sequence_parallel) {
    // Each tp rank routes its part of the rows. All get all results, unless a shared way adds them up.
    const std::int64_t own = routed_rows(place.tp, place.cp) * setup_.config.hidden_size;
    const bool added_later = block.cut && block.leaves_with_others,
               added_back = block.cut && block.enters_with_others;
    traffic.all_gather(Group::tp, own, load_.dtype,
                       (added_later ? 0 : times.forward) + (added_back ? 0 : times.backward));
  }
  add_router_losses(traffic, experts);
  if (plan_.grid.ep * plan_.grid.expt_tp == 1) return;
  if (plan_.dispatcher == DispatcherKind::alltoall)
    add_alltoall(traffic, place, experts, times);
  else
    add_allgather(traffic, place, experts, times);
}

/// What the losses count of a microbatch, see route(): of each sequence, of the whole, or its tokens alone.
/// No replay counts again.
void ModelTraffic::add_router_losses(RankTraffic& traffic, const Experts& experts) const {
  const RouterLosses& losses = load_.router_losses;
  const std::int64_t counts = experts.count + 1;
  const std::int64_t table = losses.seq_aux                  ? load_.microbatch.count() * counts
                             : losses.aux                    ? counts
                             : losses.global_aux || losses.z ? 1
                                                             : 0;
  if (table > 0) traffic.all_reduce(Group::tp_cp, table, DType::i64, load_.microbatches);
  if (losses.global_aux) traffic.all_reduce(Group::tp_dp_cp, counts, DType::i64, load_.microbatches);
}

/// The tokens of a member of the place's group tp_ep.
std::int64_t ModelTraffic::tokens_at(const GridPlace& place, std::int64_t member) const {
  const GridSizes& g = plan_.grid;
  const std::int64_t index = place.expt_dp * g.expt_tp * g.ep + member;  // among the ranks of the stage
  return routed_rows(index % g.tp, index / g.tp % g.cp);
}

void ModelTraffic::add_alltoall(RankTraffic& traffic, const GridPlace& place, const Experts& experts,
                                Times times) const {
  const GridSizes& g = plan_.grid;
  const std::int64_t passes = times.forward + times.backward;
  const auto tokens = [&](std::int64_t slice, std::int64_t ep) {
    return tokens_at(place, slice + g.expt_tp * ep);
  };
  const Range here = experts_of(experts.count, g.ep, place.ep);
  const std::int64_t own_tokens = tokens(place.expt_tp, place.ep);
  std::int64_t own_slice = 0, all_slices = 0;  // rows after the exchange over ep
  for (std::int64_t slice = 0; slice < g.expt_tp; ++slice) {
    std::int64_t rows_of_slice = 0;
    for (std::int64_t ep = 0; ep < g.ep; ++ep) rows_of_slice += choices_for(tokens(slice, ep), here, experts);
    all_slices += rows_of_slice;
    if (slice == place.expt_tp) own_slice = rows_of_slice;
  }
  const std::int64_t kept = choices_for(own_tokens, here, experts), arriving = own_slice - kept,
                     leaving = own_tokens * experts.top_k - kept, width = experts.width;
  traffic.all_gather(Group::tp_ep, experts.count, DType::i64, times.forward);  // rows for each expert
  // Rows go to their experts and results come back; gradients the other way.
  traffic.all_to_all(Group::ep, leaving * width, load_.dtype, passes);
  traffic.all_to_all(Group::ep, arriving * width, load_.dtype, passes);
  // Every slice of an expert sees the rows of all, and the results of slices are added; gradients alike.
  traffic.all_gather(Group::expt_tp, own_slice * width, load_.dtype, passes);
  traffic.reduce_scatter(Group::expt_tp, own_slice * width, all_slices * width, load_.dtype, passes);
}

void ModelTraffic::add_allgather(RankTraffic& traffic, const GridPlace& place, const Experts& experts,
                                 Times times) const {
  const GridSizes& g = plan_.grid;
  const std::int64_t k = experts.top_k, width = experts.width;
  const DType sums = accumulate_dtype(load_.dtype);
  std::int64_t all = 0;
  for (std::int64_t member = 0; member < g.expt_tp * g.ep; ++member) all += tokens_at(place, member);
  const std::int64_t own = tokens_at(place, place.expt_tp + g.expt_tp * place.ep);
  traffic.all_gather(Group::tp_ep, 1, DType::i64, times.forward);  // number of tokens
  traffic.all_gather(Group::tp_ep, own * k, DType::i32, times.forward);
  // Every rank sees all rows and weights, and the results of all experts are added; gradients alike.
  traffic.all_gather(Group::tp_ep, own * width, load_.dtype, times.forward + times.backward);
  traffic.reduce_scatter(Group::tp_ep, own * width, all * width, load_.dtype, times.forward + times.backward);
  traffic.all_gather(Group::tp_ep, own * k, sums, times.forward);
  traffic.reduce_scatter(Group::tp_ep, own * k, all * k, sums, times.backward);
}

/// For each labelled row of a cut vocabulary the maximum, then the sum of exponentials and the label's logit.
/// See linear_cross_entropy for the rows that are computed together, cross_entropy where it is all of them.
void ModelTraffic::add_loss(RankTraffic& traffic, const GridPlace& place, std::int64_t unlabelled) const {
  if (!cuts_head_) return;
  const SequenceCut part(load_.microbatch, plan_.grid.cp, place.cp);
  const std::int64_t rows_here = rows(place.cp), labels = labelled_rows(part, place.cp, unlabelled);
  const DType sums = accumulate_dtype(load_.dtype);
  const auto add = [&](std::int64_t count) {
    if (count == 0) return;
    traffic.all_reduce(Group::tp, count, sums, load_.microbatches);
    traffic.all_reduce(Group::tp, 2 * count, sums, load_.microbatches);
    if (setup_.config.z_loss_weight > 0) traffic.all_reduce(Group::tp, count, DType::f64, load_.microbatches);
  };
  if (load_.loss_rows == 0) return add(rows_here);
  for (std::int64_t at = 0; at < labels; at += load_.loss_rows) add(std::min(load_.loss_rows, labels - at));
}

/// Each transfer is what a rank has of a cut between two stages, or the gradients of that.
void ModelTraffic::add_exchanges(RankTraffic& traffic, const GridPlace& place, const Program& program) const {
  const auto shard = [&](const TensorSpec& spec) { return (*cuts_)(spec, place).shard; };
  std::map<std::int64_t, std::int64_t> sizes;  // by the block behind the cut
  const auto size_at = [&](std::int64_t block) {
    const auto [at, is_new] = sizes.try_emplace(block);
    if (is_new)
      at->second = cuts_ ? side_boundary(setup_, shard, block).numel(residual_rows(place), rows(place.cp))
                         : residual_rows(place) * setup_.config.hidden_size;
    return at->second;
  };
  for (const ProgramItem& item : program) {
    const auto* transfers = std::get_if<Exchange>(&item);
    if (!transfers) continue;
    std::int64_t sent = 0;
    for (const Transfer& t : *transfers) {
      if (t.from != place.pp) continue;
      const ModelChunk& stage = plan_.pipeline.stages.at(static_cast<std::size_t>(t.stage));
      sent += size_at(t.payload == Transfer::Payload::activation ? stage.end_block : stage.first_block);
    }
    traffic.exchange(Group::pp, sent, load_.dtype);
  }
}

}  // namespace nemocube
