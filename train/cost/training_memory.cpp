#include "train/cost/training_memory.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "core/memory_limit.h"
#include "model/block_passes.h"
#include "model/blocks/block_type.h"
#include "model/blocks/per_layer_input/per_layer_input_block.h"
#include "model/side_boundary.h"
#include "parallel/tensor_parallel/cuts.h"

namespace nemocube {
namespace {

BlockRows rows_of(const ActivationOptions& options, const ParallelPlan& plan) {
  const auto tokens = static_cast<double>(options.tokens), cp = static_cast<double>(plan.grid.cp),
             tp = static_cast<double>(plan.grid.tp);
  BlockRows rows{.tokens = tokens, .sequences = static_cast<double>(options.sequences), .cp = cp};
  rows.all = tokens / cp;
  rows.routed = rows.all / tp;
  rows.stream = plan.sequence_parallel ? rows.routed : rows.all;
  return rows;
}

/// Bytes of whole buffers.
struct UnitBytes {
  std::int64_t dense = 0, experts = 0;  // values that ranks divide
  std::int64_t gradients = 0;
};
UnitBytes operator+(const UnitBytes& a, const UnitBytes& b) {
  return {a.dense + b.dense, a.experts + b.experts, a.gradients + b.gradients};
}

UnitBytes whole_bytes(const LocalUnit& unit) {
  UnitBytes bytes;
  for (const LocalFlat& flat : unit.flats) {
    // A buffer that no other rank has a part of is never gathered.
    if (flat.shard < flat.size)
      (flat.expert ? bytes.experts : bytes.dense) += flat.size * size_of(flat.dtype);
    if (flat.trained) bytes.gradients += flat.size * size_of(accumulate_dtype(flat.dtype));
  }
  return bytes;
}

/// What ranks divide and is whole for a while, at most.
struct WholeAtOnce {
  std::int64_t values = 0, gradients = 0;
};

WholeAtOnce whole_at_once(const LocalParameters& local, const StateOptions& options) {
  const DataParallelOptions& o = options.parallel.data;
  // Until the last microbatch nothing is reduced or released.
  const bool waits = o.reduce_last_only && options.microbatches > 1;
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

/// Of the parameters that a rank owns, whole on one rank and in DDP.
struct OwnBytes {
  std::int64_t weights = 0, masters = 0, moments = 0;
};

ZeroLevel level_of(const StateOptions& options) {
  return options.parallel.grid.ranks() == 1 ? ZeroLevel::none : options.parallel.data.level;
}

OwnBytes own_bytes(const LocalParameters& local, const PlannedGroups& groups, int rank,
                   const StateOptions& options) {
  const ZeroLevel level = level_of(options);
  const OptimizerOptions& o = options.optimizer;
  const int moments_of_each = o.kind != OptimizerKind::sgd ? 2 : o.momentum != 0 ? 1 : 0;
  OwnBytes bytes;
  local.for_each_unit([&](const LocalUnit& unit) {
    for (const LocalFlat& flat : unit.flats) {
      const Range own = flat.own(level, groups.seat(flat.shard_group(level), rank).position);
      for (const LocalFlat::Piece& piece : flat.pieces) {
        const std::int64_t elements = common(own, {piece.start, piece.start + piece.count}),
                           wide = elements * size_of(accumulate_dtype(flat.dtype));
        bytes.weights += elements * size_of(flat.dtype);
        if (!flat.trained) continue;
        bytes.masters += flat.dtype == DType::bf16 ? wide : 0;
        bytes.moments += moments_of_each * wide;
      }
    }
  });
  return bytes;
}

}  // namespace

std::int64_t snapshot_bytes(const LocalParameters& local, const PlannedGroups& groups, int rank,
                            const StateOptions& options) {
  const OwnBytes own = own_bytes(local, groups, rank, options);
  return local.buffer_bytes + own.weights + own.masters + own.moments;
}

std::vector<MemoryItem> state_memory(const LocalParameters& local, const PlannedGroups& groups, int rank,
                                     const StateOptions& options) {
  const ZeroLevel level = level_of(options);
  std::int64_t weights = local.buffer_bytes, gradients = 0, reduced = 0;
  local.for_each_unit([&](const LocalUnit& unit) {
    for (const LocalFlat& flat : unit.flats) {
      const std::int64_t wide = size_of(accumulate_dtype(flat.dtype));
      weights += (level == ZeroLevel::parameters ? flat.shard : flat.size) * size_of(flat.dtype);
      if (!flat.trained) continue;
      gradients += (level >= ZeroLevel::gradients ? flat.shard : flat.size) * wide;
      reduced = std::max(reduced, flat.shard * wide);
    }
  });
  const OwnBytes own = own_bytes(local, groups, rank, options);
  std::vector<MemoryItem> items{
      {"weights", weights}, {"gradients", gradients}, {"masters", own.masters}, {"moments", own.moments}};
  const WholeAtOnce whole = whole_at_once(local, options);
  if (level == ZeroLevel::parameters) items.push_back({"gathered weights", whole.values});
  // Reduced gradients of a later microbatch, which are then added to the sum of the earlier ones.
  const bool adds = !options.parallel.data.reduce_last_only && options.microbatches > 1;
  if (level >= ZeroLevel::gradients)
    items.push_back({"gradients being reduced", whole.gradients + (adds ? reduced : 0)});
  return items;
}

namespace {

/// What the adapters of a block keep, and that of eh_proj: A x for each row. `residual`: rows of the residual
/// stream. That of lm_head keeps nothing; see loss_rank().
std::map<TensorName, std::int64_t> kept_by_adapters(const ModelSetup& setup, const BlockRows& rows,
                                                    double residual, const TensorBytes& of,
                                                    const GridSizes& grid) {
  std::map<TensorName, std::int64_t> bytes;  // by the name of the mixer; of eh_proj by its own
  if (setup.choices.lora.modules.empty()) return bytes;
  for (const TensorSpec& spec : tensor_specs(setup)) {
    if (spec.factor != LoraFactor::a || spec.module == head_name()) continue;
    const double choices =
        rows.routed * real(grid.expt_tp) * real(setup.config.of_tensor(spec.id).moe.num_experts_per_tok);
    const bool in_mixer = spec.module.in_mixer();
    const double adapted = !in_mixer                   ? residual
                           : spec.experts              ? choices
                           : spec.cut->always_own_rows ? rows.routed
                                                       : rows.all;
    bytes[in_mixer ? spec.module.whole() : spec.module] +=
        of.stored(adapted * static_cast<double>(spec.shape[spec.shape.ndim() - 2]));
  }
  return bytes;
}

/// The rank of the adapter of lm_head, which forms A x for the rows of one chunk of logits at a time; 0:
/// none.
std::int64_t loss_rank(const LoraAdapters& lora) {
  const auto adapter = lora.modules.find(head_name());
  return adapter == lora.modules.end() ? 0 : adapter->second.rank;
}

/// A block of a chunk, or of a depth of multi-token prediction, which works in training alone.
struct ChunkBlock {
  BlockKind kind;
  TensorName name;  // block_name(i) or depth_name(i)
  bool backward;
};
std::vector<ChunkBlock> blocks_of(const ModelSetup& setup, const ModelChunk& chunk, bool forward_only) {
  const ModelConfig& config = setup.config;
  std::vector<ChunkBlock> blocks;
  const std::vector<BlockPass> passes = block_passes(setup, chunk);
  for (std::int64_t i = chunk.first_block; i < std::min(chunk.end_block, config.num_layers()); ++i)
    blocks.push_back({config.blocks[static_cast<std::size_t>(i)], block_name(i),
                      !forward_only && passes[static_cast<std::size_t>(i - chunk.first_block)].backward});
  if (!chunk.head || forward_only) return blocks;
  const std::vector<DepthPasses> depths = mtp_passes(setup, chunk);
  const std::size_t size = config.mtp_blocks.size();
  for (std::size_t k = 0; k < depths.size(); ++k)
    for (std::size_t i = 0; i < size; ++i)
      blocks.push_back(
          {config.mtp_blocks[i], depth_name(setup.block_of_depth(k, i)), depths[k].blocks[i].backward});
  return blocks;
}

/// What the depths of multi-token prediction keep beside their blocks, in training: embedded rows and their
/// norm, the norm of the hidden states, both joined, and hidden states; of a depth without a backward pass
/// before its blocks the last alone.
std::int64_t kept_between_depths(const ModelSetup& setup, const ModelChunk& chunk, std::int64_t row,
                                 const std::map<TensorName, std::int64_t>& by_adapters) {
  std::int64_t kept = 0;
  const std::vector<DepthPasses> depths = mtp_passes(setup, chunk);
  for (std::size_t k = 0; k < depths.size(); ++k) {
    kept += (depths[k].join.backward ? 7 : 1) * row;
    const auto adapter = by_adapters.find(depth_name(setup.block_of_depth(k), mtp_join));
    if (depths[k].join.backward && adapter != by_adapters.end()) kept += adapter->second;
  }
  return kept;
}

/// The tables of cosines and sines that the sequences of a microbatch keep, one for all blocks whose rotary
/// embeddings are the same.
std::int64_t rotary_tables(const ModelConfig& config, const std::vector<ModelChunk>& chunks,
                           const BlockRows& rows, const TensorBytes& of) {
  std::vector<std::pair<RopeConfig, std::int64_t>> counted;
  std::int64_t bytes = 0;
  for (std::int64_t i = 0; i < config.num_layers(); ++i) {
    const AttentionConfig& attention = config.block(i).attention;
    const std::pair rope{attention.rope, attention.head_dim};
    if (!config.blocks[static_cast<std::size_t>(i)]->cores(config.block(i)).attention ||
        attention.rope.type == RopeType::none || std::ranges::count(counted, rope) > 0 ||
        std::ranges::none_of(chunks, [&](const ModelChunk& chunk) { return chunk.has_block(i); }))
      continue;
    counted.push_back(rope);
    bytes += of.wide(rows.all * real(rotary_width(attention.rope, attention.head_dim)));
  }
  return bytes;
}

}  // namespace

std::int64_t activation_memory(const ModelSetup& setup, DType dtype, const ActivationOptions& options,
                               const ParallelPlan& plan, std::int64_t pipeline_rank) {
  const ModelConfig& config = setup.config;
  const TensorBytes of{size_of(dtype), size_of(accumulate_dtype(dtype))};
  const BlockRows rows = rows_of(options, plan);
  const double residual = rows.stream;
  const std::int64_t row = of.stored(residual * static_cast<double>(config.hidden_size));
  const auto by_adapters = kept_by_adapters(setup, rows, residual, of, plan.grid);
  // What a norm keeps of a row beside its input: 1 / rms, or mean and 1 / std.
  const std::int64_t factors = of.wide(residual) * (config.norm == NormKind::layernorm ? 2 : 1);
  // Bytes of what sequence parallelism gathers for a mixer: the rows of all ranks. 0: nothing.
  const std::int64_t gathered = plan.sequence_parallel && plan.grid.tp > 1
                                    ? of.stored(rows.all * static_cast<double>(config.hidden_size))
                                    : 0;
  std::int64_t most = 0, most_kept = 0;
  const std::vector<ModelChunk> chunks = plan.pipeline.chunks_of(pipeline_rank);
  const std::int64_t tables = rotary_tables(config, chunks, rows, of);
  std::optional<TensorCuts> cuts;
  if (!side_rows_by_maker(config).empty())
    cuts.emplace(setup, TensorParallelPlan(setup, plan.sequence_parallel, plan.tensor_rules), plan.grid);
  const auto shard = [&](const TensorSpec& spec) { return (*cuts)(spec, {.pp = pipeline_rank}).shard; };
  for (const ModelChunk& chunk : chunks) {
    std::int64_t kept = 0, passed = 0;  // passed: side rows that leave the chunk
    const auto side_bytes = [&](std::int64_t block) {
      if (!cuts) return std::int64_t{0};
      const SideBoundary boundary = side_boundary(setup, shard, std::min(block, config.num_layers()));
      if (boundary.rows.empty()) return std::int64_t{0};
      return of.stored(real(boundary.numel(std::llround(rows.stream), std::llround(rows.all))));
    };
    if (chunk.embeddings) {
      // Per-layer inputs: what their norm reads, its factors, and the rows that blocks read.
      const double layers = real(config.count(per_layer_input_block));
      if (layers > 0)
        kept += 2 * of.stored(rows.stream * layers * real(config.per_layer_input.size)) +
                of.wide(rows.stream * layers);
    } else {
      kept += side_bytes(chunk.first_block);
    }
    if (!chunk.head) passed = side_bytes(chunk.end_block);
    for (const auto& [kind, name, backward] : blocks_of(setup, chunk, options.forward_only)) {
      BlockMemory block = kind->memory(config.of_tensor(name), rows, of, {plan.grid.tp, plan.grid.expt_tp});
      if (const auto adapters = by_adapters.find(mixer_of(name)); adapters != by_adapters.end())
        block.kept += adapters->second;
      if (has_norm_after(config.of_tensor(name).residual))
        block.kept += row + factors;  // what enters the norm behind the mixer, and its factors
      if (!backward) {
        most = std::max(most, kept + 4 * row + block.kept);
        continue;
      }
      kept += row + factors;  // the residual sum, and the factors of its norm
      if (gathered == 0)
        block.kept += plan.grid.tp > 1 ? row : 0;
      else if (!config.shares_norm(name))
        block.kept += gathered;
      else if (config.of_tensor(name).residual != Residual::shared_norm)
        kept += gathered;  // by the first block on a norm, for all of them
      // The norm, which is computed again, and the gradients of both.
      most = std::max(most, kept + block.kept + block.backward + 3 * row);
      if (!options.checkpointing) kept += block.kept;
    }
    // Hidden states for the head, labelled rows of them, the gradients of both; one chunk of logits.
    std::int64_t ends = 4 * row + 2 * passed;
    if (chunk.head && !options.forward_only) kept += kept_between_depths(setup, chunk, row, by_adapters);
    if (chunk.head) {
      const std::int64_t vocabulary = vocabulary_range(config.vocab_size, plan.grid.tp, 0).size();
      const double loss_rows = std::min(rows.all, static_cast<double>(options.loss_rows)),
                   logits = loss_rows * static_cast<double>(vocabulary);
      ends += of.wide(logits) + (of.stored_size < of.wide_size ? of.stored(logits) : 0);
      ends += 2 * of.stored(loss_rows * real(loss_rank(setup.choices.lora)));  // A x and its gradient
      if (config.logit_scale != 1) ends += row;                                // the scaled rows
      if (config.normalized_head) {
        // The rows divided by their lengths, and their gradient.
        const double weight = real(vocabulary) * real(config.hidden_size);
        const bool trained = !options.forward_only && !setup.choices.frozen.contains(head_name() / "weight");
        ends += of.stored(weight) + (trained ? of.wide(weight) : 0);
      }
    }
    most = std::max(most, kept + ends);
    most_kept = std::max(most_kept, kept);
  }
  return most + tables + (options.live - 1) * (most_kept + tables);
}

std::int64_t decode_state_memory(const ModelConfig& config, DType dtype, std::int64_t sequences,
                                 std::int64_t length) {
  const TensorBytes of{size_of(dtype), size_of(accumulate_dtype(dtype))};
  std::int64_t bytes = 0;
  for (std::int64_t i = 0; i < config.num_layers(); ++i)
    bytes += config.blocks[static_cast<std::size_t>(i)]->decode_bytes(config.block(i), of, sequences, length);
  return bytes;
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
