#include "train/memory/training_memory.h"

#include <algorithm>

#include "core/memory_limit.h"
#include "parallel/tensor_parallel/cuts.h"

namespace nemocube {
namespace {

/// Rows on a rank, in one microbatch.
struct Rows {
  double all = 0;       // that cut layers see
  double residual = 0;  // of the residual stream
  double routed = 0;    // that the rank routes to experts
  double arriving = 0;  // for which its experts compute, each counted once for all its choices
};

/// Numbers that a block keeps: in the dtype of the model, and in f32 (f64).
struct Kept {
  double stored = 0, wide = 0;
  double no_gradient = 0;   ///< the part of `stored` whose gradients never coexist with the other gradients
  double accumulators = 0;  ///< that backward alone needs, in f32 (f64)
};

/// `c` has the sizes of the local part.
Kept kept_by(BlockKind kind, const NemotronHConfig& c, const Rows& rows) {
  const auto n = [](std::int64_t count) { return static_cast<double>(count); };
  Kept kept;
  switch (kind) {
    case BlockKind::mamba:
      // in_proj's output, the convolution's, the scan's and the norm's; the states at the starts of chunks
      kept.stored = rows.all * (n(c.in_proj_width()) + n(c.conv_dim()) + 2 * n(c.mamba_inner()));
      kept.wide = rows.all * (n(c.n_groups) + n(c.mamba_inner()) * n(c.ssm_state_size) / n(c.chunk_size));
      break;
    case BlockKind::attention:
      kept.stored = rows.all * (2 * n(c.q_width()) + 2 * n(c.kv_width()));  // q, the output, k and v
      kept.wide = rows.all * n(c.num_attention_heads);
      kept.accumulators = rows.all * 2 * n(c.kv_width());  // of the gradients of k and v
      break;
    case BlockKind::mlp:
      kept.stored = rows.all * n(c.intermediate_size);
      break;
    case BlockKind::moe: {
      // for each expert of a token: input row, hidden row and output row
      const double choices = rows.arriving * n(c.num_experts_per_tok),
                   shared = rows.all * n(c.moe_shared_expert_intermediate_size);
      kept.stored = choices * (2 * n(c.expert_width()) + n(c.moe_intermediate_size)) + shared;
      if (c.moe_latent_size > 0) kept.stored += rows.routed * n(c.moe_latent_size);
      // Backward handles shared and routed experts one after the other. It has freed the gradient of the
      // output rows when it computes the gradient of the input rows.
      kept.no_gradient = choices * n(c.expert_width()) + shared;
      kept.wide = rows.routed * (n(c.n_routed_experts) + n(c.num_experts_per_tok));
      break;
    }
  }
  return kept;
}

/// The sizes of the layers on one tensor-parallel rank, as the usual plan cuts them.
NemotronHConfig local_sizes(NemotronHConfig c, const GridSizes& grid) {
  const auto divide = [&](std::int64_t& size, std::int64_t ranks) {
    size = std::max<std::int64_t>(1, size / ranks);
  };
  for (std::int64_t* size : {&c.num_attention_heads, &c.num_key_value_heads, &c.intermediate_size,
                             &c.mamba_num_heads, &c.n_groups, &c.moe_shared_expert_intermediate_size})
    divide(*size, grid.tp);
  divide(c.moe_intermediate_size, grid.expt_tp);
  c.vocab_size = vocabulary_range(c.vocab_size, grid.tp, 0).size();
  return c;
}

/// Bytes of whole buffers.
struct UnitBytes {
  std::int64_t dense = 0, experts = 0;  // values
  std::int64_t gradients = 0;
};
UnitBytes operator+(const UnitBytes& a, const UnitBytes& b) {
  return {a.dense + b.dense, a.experts + b.experts, a.gradients + b.gradients};
}

UnitBytes whole_bytes(const LocalUnit& unit) {
  UnitBytes bytes;
  for (const LocalFlat& flat : unit.flats) {
    (flat.expert ? bytes.experts : bytes.dense) += flat.size * size_of(flat.dtype);
    bytes.gradients += flat.size * size_of(accumulate_dtype(flat.dtype));
  }
  return bytes;
}

/// What ranks divide and is whole for a while, at most.
struct WholeAtOnce {
  std::int64_t values = 0, gradients = 0;
};

WholeAtOnce whole_at_once(const LocalParameters& local, const StatePlan& plan) {
  const DataParallelOptions& o = plan.parallel.data;
  // Until the last microbatch nothing is reduced or released.
  const bool waits = o.reduce_last_only && plan.microbatches > 1;
  UnitBytes all, before;
  for (const auto& [block, unit] : local.blocks) all = all + whole_bytes(unit);
  WholeAtOnce most;
  for (const auto& [block, unit] : local.blocks) {
    const UnitBytes bytes = whole_bytes(unit);
    // The next block is gathered, and the last one reduced, while a block computes.
    const UnitBytes together = o.overlap ? before + bytes : bytes;
    before = bytes;
    const std::int64_t dense = waits || !o.reshard_after_forward ? all.dense : together.dense;
    const std::int64_t experts = waits || !o.reshard_experts_after_forward ? all.experts : together.experts;
    most.values = std::max(most.values, dense + experts);
    most.gradients = std::max(most.gradients, waits ? all.gradients : together.gradients);
  }
  const UnitBytes root = whole_bytes(local.root);
  return {most.values + root.dense + root.experts, most.gradients + root.gradients};
}

std::int64_t common(const Range& a, const Range& b) {
  return std::max<std::int64_t>(0, std::min(a.end, b.end) - std::max(a.begin, b.begin));
}

}  // namespace

std::vector<MemoryItem> state_memory(const LocalParameters& local, const PlannedGroups& groups, int rank,
                                     const StatePlan& plan) {
  const bool alone = plan.parallel.grid.ranks() == 1;
  const ZeroLevel level = alone ? ZeroLevel::none : plan.parallel.data.level;
  const OptimizerOptions& o = plan.optimizer;
  const int moments_of_each = o.kind != OptimizerKind::sgd ? 2 : o.momentum != 0 ? 1 : 0;
  std::int64_t weights = local.buffer_bytes, gradients = 0, masters = 0, moments = 0, reduced = 0;
  local.for_each_unit([&](const LocalUnit& unit) {
    for (const LocalFlat& flat : unit.flats) {
      const std::int64_t wide = size_of(accumulate_dtype(flat.dtype));
      weights += (level == ZeroLevel::parameters ? flat.shard : flat.size) * size_of(flat.dtype);
      gradients += (level >= ZeroLevel::gradients ? flat.shard : flat.size) * wide;
      reduced = std::max(reduced, flat.shard * wide);
      const Range own = flat.own(level, groups.seat(flat.shard_group(level), rank).position);
      for (const LocalFlat::Piece& piece : flat.pieces) {
        const std::int64_t bytes = common(own, {piece.start, piece.start + piece.count}) * wide;
        masters += flat.dtype == DType::bf16 ? bytes : 0;
        moments += moments_of_each * bytes;
      }
    }
  });
  std::vector<MemoryItem> items{
      {"weights", weights}, {"gradients", gradients}, {"masters", masters}, {"moments", moments}};
  const WholeAtOnce whole = whole_at_once(local, plan);
  if (level == ZeroLevel::parameters) items.push_back({"gathered weights", whole.values});
  // Reduced gradients of a later microbatch, which are then added to the sum of the earlier ones.
  const bool adds = !plan.parallel.data.reduce_last_only && plan.microbatches > 1;
  if (level >= ZeroLevel::gradients)
    items.push_back({"gradients being reduced", whole.gradients + (adds ? reduced : 0)});
  return items;
}

std::int64_t activation_memory(const NemotronHConfig& config, DType dtype, const ActivationOptions& options,
                               const ParallelPlan& plan, std::int64_t pipeline_rank) {
  const GridSizes& grid = plan.grid;
  const auto stored_size = static_cast<double>(size_of(dtype));
  const auto wide_size = static_cast<double>(size_of(accumulate_dtype(dtype)));
  const auto hidden = static_cast<double>(config.hidden_size), tp = static_cast<double>(grid.tp);
  const NemotronHConfig local = local_sizes(config, grid);
  Rows rows;
  rows.all = static_cast<double>(options.tokens) / static_cast<double>(grid.cp);
  rows.residual = plan.sequence_parallel ? rows.all / tp : rows.all;
  rows.routed = rows.all / tp;
  rows.arriving = rows.routed * static_cast<double>(grid.expt_tp);
  double most_blocks = 0, recomputed = 0, gradients = 0, logits = 0;
  for (const ModelChunk& chunk : plan.pipeline.chunks_of(pipeline_rank)) {
    double blocks = 0;
    for (std::int64_t i = chunk.first_block; i < std::min(chunk.end_block, config.num_layers()); ++i) {
      const Kept kept = kept_by(config.blocks[static_cast<std::size_t>(i)], local, rows);
      const double bytes = kept.stored * stored_size + kept.wide * wide_size;
      recomputed = std::max(recomputed, bytes);
      gradients = std::max(gradients, bytes - kept.no_gradient * stored_size + kept.accumulators * wide_size);
      // The residual sum, its norm, and one factor of that.
      blocks += rows.residual * (2 * hidden * stored_size + wide_size) + (options.checkpointing ? 0 : bytes);
    }
    most_blocks = std::max(most_blocks, blocks);
    if (!chunk.head) continue;
    const double chunk_rows = std::min(rows.all, static_cast<double>(options.loss_rows));
    logits = chunk_rows * static_cast<double>(local.vocab_size) * wide_size;
  }
  if (!options.checkpointing) recomputed = 0;
  // Embeddings, the hidden states for the head and the gradients of both.
  const double ends = 4 * rows.residual * hidden * stored_size;
  return static_cast<std::int64_t>(static_cast<double>(options.live) * most_blocks + recomputed + gradients +
                                   ends + logits);
}

std::int64_t total_bytes(const std::vector<MemoryItem>& items) {
  std::int64_t total = 0;
  for (const MemoryItem& item : items) total += item.bytes;
  return total;
}

std::string describe(const std::vector<MemoryItem>& items) {
  std::string text;
  for (const MemoryItem& item : items)
    if (item.bytes > 0) text += cat(text.empty() ? "" : ", ", item.what, " ", bytes_text(item.bytes));
  return text;
}

}  // namespace nemocube
