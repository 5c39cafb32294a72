#include "train/memory/training_memory.h"

#include <algorithm>
#include <map>

#include "core/memory_limit.h"

namespace nemocube {
namespace {

/// Numbers that a block keeps for each token: in the dtype of the model, and in f32 (f64).
struct Kept {
  double stored = 0, wide = 0;
  double no_gradient = 0;   ///< the part of `stored` whose gradients never coexist with the other gradients
  double accumulators = 0;  ///< that backward alone needs, in f32 (f64)
};

Kept kept_by(BlockKind kind, const NemotronHConfig& c) {
  const auto n = [](std::int64_t count) { return static_cast<double>(count); };
  Kept kept;
  switch (kind) {
    case BlockKind::mamba:
      // in_proj's output, the convolution's, the scan's and the norm's; the states at the starts of chunks
      kept.stored = n(c.in_proj_width()) + n(c.conv_dim()) + 2 * n(c.mamba_inner());
      kept.wide = n(c.n_groups) + n(c.mamba_inner()) * n(c.ssm_state_size) / n(c.chunk_size);
      break;
    case BlockKind::attention:
      kept.stored = 2 * n(c.q_width()) + 2 * n(c.kv_width());  // q, the output, k and v
      kept.wide = n(c.num_attention_heads);
      kept.accumulators = 2 * n(c.kv_width());  // of the gradients of k and v
      break;
    case BlockKind::mlp:
      kept.stored = n(c.intermediate_size);
      break;
    case BlockKind::moe:
      // for each expert of a token: input row, hidden row and output row
      kept.stored = n(c.num_experts_per_tok) * (2 * n(c.expert_width()) + n(c.moe_intermediate_size));
      kept.stored += n(c.moe_shared_expert_intermediate_size);
      if (c.moe_latent_size > 0) kept.stored += n(c.moe_latent_size);
      // Backward handles shared and routed experts one after the other. It has freed the gradient of the
      // output rows when it computes the gradient of the input rows.
      kept.no_gradient =
          n(c.num_experts_per_tok) * n(c.expert_width()) + n(c.moe_shared_expert_intermediate_size);
      kept.wide = n(c.n_routed_experts) + n(c.num_experts_per_tok);
      break;
  }
  return kept;
}

struct Bytes {
  std::int64_t values = 0, gradients = 0, masters = 0;
};
Bytes operator+(const Bytes& a, const Bytes& b) {
  return {a.values + b.values, a.gradients + b.gradients, a.masters + b.masters};
}

/// The units of DataParallel, whole: each block's mixer, and the root, which is everything else.
class Units {
 public:
  Units(const ParameterStore& parameters, const DividedState& division) {
    std::map<std::pair<std::int64_t, DType>, std::int64_t> elements;  // of each unit and dtype
    const auto aligned = [&](std::int64_t count, std::int64_t to) {
      return division.dp > 1 ? (count + to - 1) / to * to : count;
    };
    for (const Parameter& p : parameters.all()) {
      if (!p.wants_grad()) {
        frozen_ += p.value.bytes();
        continue;
      }
      elements[{unit_of(p.name).value_or(-1), p.value.dtype()}] += aligned(p.value.numel(), alignment);
    }
    for (const auto& [key, count] : elements) {
      const auto [block, dtype] = key;
      const std::int64_t size = aligned(count, alignment * division.dp_shard);
      const std::int64_t wide = size * size_of(accumulate_dtype(dtype));
      const Bytes bytes{size * size_of(dtype), wide, dtype == DType::bf16 ? wide : 0};
      Bytes& unit = block < 0 ? root_ : blocks_[block];
      unit = unit + bytes;
    }
  }

  std::int64_t frozen() const { return frozen_; }
  Bytes all() const {
    Bytes sum = root_;
    for (const auto& [block, bytes] : blocks_) sum = sum + bytes;
    return sum;
  }
  /// The most that is whole at the same time of what ranks divide.
  Bytes whole_at_once(const DividedState& division) const {
    const DataParallelOptions& o = division.options;
    // Until the last microbatch nothing is reduced or released.
    const bool waits = o.reduce_last_only && division.microbatches > 1;
    Bytes most, before;
    for (const auto& [block, bytes] : blocks_) {
      // The next block is gathered, and the last one reduced, while a block computes.
      const Bytes together = o.overlap ? before + bytes : bytes;
      most.values = std::max(most.values, together.values);
      most.gradients = std::max(most.gradients, together.gradients);
      before = bytes;
    }
    // Reduced gradients of a later microbatch, which are then added to the sum of the earlier ones.
    if (!o.reduce_last_only && division.microbatches > 1)
      most.gradients += most.gradients / division.dp_shard;
    Bytes whole = root_ + most;
    if (waits || !o.reshard_after_forward) whole.values = all().values;
    if (waits) whole.gradients = all().gradients;
    return whole;
  }

 private:
  static constexpr std::int64_t alignment = FlatLayout::alignment;
  std::int64_t frozen_ = 0;
  Bytes root_;
  std::map<std::int64_t, Bytes> blocks_;
};

}  // namespace

std::vector<MemoryItem> state_memory(const ParameterStore& parameters, const OptimizerOptions& options,
                                     const DividedState& division) {
  const Units units(parameters, division);
  const Bytes all = units.all(), whole = units.whole_at_once(division);
  const ZeroLevel level = division.options.level;
  // What a rank keeps of bytes that are divided from a level on.
  const auto kept = [&](std::int64_t bytes, ZeroLevel from) {
    return division.dp > 1 && level >= from ? bytes / division.dp_shard : bytes;
  };
  const int moments_of_each = options.kind != OptimizerKind::sgd ? 2 : options.momentum != 0 ? 1 : 0;
  std::vector<MemoryItem> items{
      {"weights", units.frozen() + kept(all.values, ZeroLevel::parameters)},
      {"gradients", kept(all.gradients, ZeroLevel::gradients)},
      {"masters", kept(all.masters, ZeroLevel::optimizer)},
      {"moments", moments_of_each * kept(all.gradients, ZeroLevel::optimizer)},
  };
  if (division.dp == 1) return items;
  if (level == ZeroLevel::parameters) items.push_back({"gathered weights", whole.values});
  if (level >= ZeroLevel::gradients) items.push_back({"gradients being reduced", whole.gradients});
  return items;
}

std::int64_t activation_memory(const NemotronHConfig& config, DType dtype, const ActivationOptions& options) {
  const auto stored_size = static_cast<double>(size_of(dtype));
  const auto wide_size = static_cast<double>(size_of(accumulate_dtype(dtype)));
  const auto hidden = static_cast<double>(config.hidden_size);
  double blocks = 0, recomputed = 0, gradients = 0;
  for (const BlockKind kind : config.blocks) {
    const Kept kept = kept_by(kind, config);
    const double bytes = kept.stored * stored_size + kept.wide * wide_size;
    recomputed = std::max(recomputed, bytes);
    gradients = std::max(gradients, bytes - kept.no_gradient * stored_size + kept.accumulators * wide_size);
    // The residual sum, its norm, and one factor of that.
    blocks += 2 * hidden * stored_size + wide_size + (options.checkpointing ? 0 : bytes);
  }
  if (options.checkpointing) blocks += recomputed;
  const auto rows = static_cast<double>(std::min(options.tokens, options.loss_rows));
  const double logits = rows * static_cast<double>(config.vocab_size) * wide_size;
  // Embeddings, the hidden states for the head and the gradients of both.
  const double ends = 4 * hidden * stored_size;
  return static_cast<std::int64_t>(static_cast<double>(options.tokens) * (blocks + gradients + ends) +
                                   logits);
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
