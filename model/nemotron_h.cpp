#include "model/nemotron_h.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/allocation_owner.h"
#include "core/trace.h"
#include "model/block_passes.h"
#include "model/blocks/block_type.h"
#include "ops/embedding/embedding.h"
#include "ops/embedding/embedding_noise.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/matmul/matmul.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/view/view.h"

namespace nemocube {
namespace {

// On the CPU, the logits of a chunk should stay in cache. On CUDA, every chunk reads and writes the whole f32 gradient of
// lm_head: with 2048 rows, its products have 1500 operations for each byte of that, five times what an H100 does in the
// time of a byte.
std::int64_t default_loss_chunk_rows(std::int64_t vocabulary, Device device) {
  const std::int64_t logits = device.is_cuda() ? 256 << 20 : 4 << 20, most = device.is_cuda() ? 2048 : 512;
  return std::clamp<std::int64_t>(logits / vocabulary, 256, most);
}

}  // namespace

NemotronH::NemotronH(const NemotronHConfig& config, DType dtype, Device device, ModelPart part)
    : config_((config.validate(), config)),
      dtype_(dtype),
      part_(std::move(part)),
      parameters_(config, dtype, device, part_) {
  loss_chunk_rows = default_loss_chunk_rows(config_.vocab_size, device);
  if (part_.embeddings()) {
    embeddings_ = &parameters_.get("backbone.embeddings.weight");
    points_.emplace("backbone.embeddings.output",
                    TransformPoint{&embeddings_output_, PointPlace::way_out, "backbone.embeddings",
                                   config_.noise.alpha > 0 ? &embeddings_rows_ : nullptr});
  }
  if (part_.head()) {
    final_norm_ = &parameters_.get("backbone.norm_f.weight");
    lm_head_ = &parameters_.get("lm_head.weight");
    if (Adapter adapter(config_, parameters_, "lm_head"); adapter) head_adapter_.emplace(std::move(adapter));
    points_.emplace("lm_head.input", TransformPoint{&lm_head_input_, PointPlace::way_in, "lm_head",
                                                    head_adapter_ ? head_adapter_->rows() : nullptr});
  }
  for (std::int64_t i = 0; i < config_.num_layers(); ++i) {
    const std::string name = "backbone.layers." + std::to_string(i);
    if (!part_.has(name)) continue;
    const BlockKind kind = config_.blocks[static_cast<std::size_t>(i)];
    blocks_.push_back(make_layer(i, kept_name(cat(kind, " block ", i)), name, kind));
  }
  if (part_.head()) add_mtp_depths();
}

NemotronH::Layer NemotronH::make_layer(std::int64_t number, const char* owner, const std::string& name,
                                       BlockKind kind) {
  Layer layer{number, owner, &parameters_.get(name + ".norm.weight"), trains_mixer(config_, name, kind),
              kind->make({config_, config_.of_tensor(name), parameters_, points_}, name + ".mixer")};
  if (auto* moe = dynamic_cast<MoeMixer*>(layer.mixer.get())) moe_layers_.push_back(moe);
  return layer;
}

Var NemotronH::run_block(Context& ctx, const Layer& block, const Var& x, const MixerCall& call) const {
  // The closures of a checkpoint outlive this call.
  const Block mixer = [&m = *block.mixer, sequences = call.sequences, state = call.state,
                       record = call.record](Context& c, const Var& in) {
    return m.forward(c, in, {sequences, state, record});
  };
  const bool backward = ctx.tape && (block.trained || x.needs_grad());
  const auto run = [&] {
    return activation_checkpointing && backward ? checkpoint(ctx, "block", mixer, x) : mixer(ctx, x);
  };
  if (!hooks || block.number >= config_.num_layers()) return run();  // multi-token prediction has none
  hooks->before_forward(block.number);
  if (backward)
    ctx.tape->record("block", [h = hooks, i = block.number, tape = ctx.tape] {
      h->after_backward(i);
      tape->weight_work([h, i] { h->gradients_written(i); });
    });
  const Var y = run();
  if (backward) ctx.tape->record("block", [h = hooks, i = block.number] { h->before_backward(i); });
  hooks->after_forward(block.number);
  return y;
}

std::pair<std::size_t, std::size_t> NemotronH::blocks_of(std::size_t chunk) const {
  const ModelChunk& c = part_.chunks.at(chunk);
  const auto first = std::ranges::lower_bound(blocks_, c.first_block, {}, &Layer::number);
  const auto end = std::ranges::lower_bound(blocks_, c.end_block, {}, &Layer::number);
  return {first - blocks_.begin(), end - blocks_.begin()};
}

Var NemotronH::forward(Context& ctx, const ForwardInput& input) {
  const Sequences& sequences = input.sequences;
  const ModelChunk& chunk = part_.chunks.at(input.chunk);
  const auto [first, end] = blocks_of(input.chunk);
  const AllocationOwner embeddings("embeddings");
  Var residual =
      chunk.embeddings ? embed(ctx, input.ids, sequences, token_rows && !input.state) : input.residual;
  const auto call_of = [&](std::size_t i) -> MixerCall {
    return {sequences, input.state ? input.state->blocks[first + i].get() : nullptr,
            input.records ? (*input.records)[i].get() : nullptr};
  };
  return run_blocks(ctx, std::span(blocks_).subspan(first, end - first), chunk.head ? final_norm_ : nullptr,
                    std::move(residual), call_of);
}

namespace {

/// What sequences keep of noise_magnitude().
struct NoiseMagnitude {
  Tensor value;
  void refill(const NoiseMagnitude& made) const { value.copy_from(made.value); }
};

/// f64 [1]: alpha / sqrt(S H).
Tensor noise_magnitude(const Sequences& whole, double alpha, std::int64_t hidden, Device device) {
  const auto make = [=](const Sequences& rows) {
    expect(rows.padded_length() > 0, "noise on embeddings: the padded length of rows is ",
           rows.padded_length());
    const double elements = static_cast<double>(rows.padded_length()) * static_cast<double>(hidden);
    return NoiseMagnitude{Tensor::from<double>({alpha / std::sqrt(elements)}, {1}).to(device)};
  };
  return whole.derived<NoiseMagnitude>(device, {std::bit_cast<std::int64_t>(alpha), hidden}, make).value;
}

}  // namespace

Var NemotronH::embed(Context& ctx, const Tensor& ids, const Sequences& sequences, bool cut,
                     std::size_t depth) const {
  const trace::Span span(trace::Category::forward, "embeddings");
  (cut ? token_rows(sequences) : sequences).check("model", ids.numel());
  const Var rows = embedding(ctx, ids, embeddings_->var(), embedding_part);
  const Var out = apply(embeddings_output_, ctx, rows, sequences);
  const NoiseTraining& noise = config_.noise;
  if (noise.alpha == 0 || sequences.numbers().empty()) return out;
  // Behind the transform: ranks that add up their rows add the noise once.
  const Device device = out.value().device();
  const Sequences own = embeddings_rows_ ? embeddings_rows_(sequences) : sequences;
  add_embedding_noise(out.value(),
                      {.stream = RandomStream(noise.seed, depth == 0 ? "neftune" : cat("neftune.", depth)),
                       .magnitude = noise_magnitude(sequences, noise.alpha, config_.hidden_size, device),
                       .row_numbers = own.row_numbers_on(device)});
  return out;
}

Var NemotronH::run_blocks(Context& ctx, std::span<const Layer> blocks, const Parameter* last_norm,
                          Var residual, const std::function<MixerCall(std::size_t)>& call_of) const {
  const double eps = config_.layer_norm_epsilon;
  const auto norm_before = [&](std::size_t i) { return i < blocks.size() ? blocks[i].norm : last_norm; };
  if (!norm_before(0)) return residual;
  Var normed = rmsnorm(ctx, residual, norm_before(0)->var(), eps);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const AllocationOwner block(blocks[i].owner);
    const trace::Span span(trace::Category::forward, blocks[i].owner, {{"layer", blocks[i].number}});
    const Var out = run_block(ctx, blocks[i], normed, call_of(i));
    // One operation adds this block to the residual stream and applies the norm of the next block.
    const Parameter* next = norm_before(i + 1);
    if (!next) return add(ctx, out, residual);
    const ResidualNorm sum = residual_rmsnorm(ctx, out, residual, next->var(), eps);
    residual = sum.sum;
    normed = sum.normed;
  }
  return normed;
}

Tensor NemotronH::logits(const Tensor& hidden) const {
  const Tensor out =
      Tensor::empty({hidden.rows(), lm_head_->value.dim(0)}, accumulate_dtype(dtype_), hidden.device());
  matmul({out, Into::set}, hidden, false, lm_head_->value, true);
  if (head_adapter_) add_lora_values(out, hidden, head_adapter_->branch());
  return out;
}

Var NemotronH::loss(Context& ctx, const Var& hidden, const Labels& labels, const Sequences& sequences,
                    const GradScale& grad_scale) {
  const AllocationOwner owner("loss");
  const trace::Span span(trace::Category::forward, "loss");
  const Var rows = apply(lm_head_input_, ctx, hidden, sequences);
  const LoraBranch adapter =
      head_adapter_ ? head_adapter_->branch(sequences, rows.value().device()) : LoraBranch();
  return linear_cross_entropy(ctx, rows, lm_head_->var(), labels, grad_scale, loss_chunk_rows,
                              vocabulary_part, head_adapter_ ? &adapter : nullptr);
}

DecodeState NemotronH::make_state(std::int64_t sequences) const {
  DecodeState state;
  for (const Layer& block : blocks_) state.blocks.push_back(block.mixer->make_state(sequences));
  return state;
}

std::vector<MoeRecord*> moe_records(const BlockRecords& records) {
  std::vector<MoeRecord*> found;
  for (const auto& record : records)
    if (auto* moe = dynamic_cast<MoeRecord*>(record.get())) found.push_back(moe);
  return found;
}

BlockRecords NemotronH::make_records(std::size_t chunk) const {
  BlockRecords records;
  const auto [first, end] = blocks_of(chunk);
  for (std::size_t i = first; i < end; ++i) records.push_back(blocks_[i].mixer->make_record());
  return records;
}

}  // namespace nemocube
