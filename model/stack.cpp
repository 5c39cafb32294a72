#include "model/stack.h"

#include <algorithm>

#include "core/allocation_owner.h"
#include "core/trace.h"
#include "model/block_passes.h"
#include "model/blocks/block_type.h"
#include "ops/scale_by/scale_by.h"
#include "ops/view/flat.h"
#include "ops/view/view.h"

namespace nemocube {
namespace {

// On the CPU, the logits of a chunk should stay in cache. On CUDA, every chunk reads and writes the whole f32
// gradient of lm_head: with 2048 rows, its products have 1500 operations for each byte of that, five times
// what an H100 does in the time of a byte.
std::int64_t default_loss_chunk_rows(std::int64_t vocabulary, Device device) {
  const std::int64_t logits = device.is_cuda() ? 256 << 20 : 4 << 20, most = device.is_cuda() ? 2048 : 512;
  return std::clamp<std::int64_t>(logits / vocabulary, 256, most);
}

}  // namespace

Stack::Stack(const ModelSetup& setup, DType dtype, Device device, ModelPart part)
    : setup_((setup.validate(), setup)),
      dtype_(dtype),
      part_(std::move(part)),
      parameters_(setup_, dtype, device, part_) {
  loss_chunk_rows = default_loss_chunk_rows(config().vocab_size, device);
  if (part_.embeddings()) front_.emplace(setup_, parameters_, points_);
  if (part_.head()) tail_.emplace(setup_, parameters_, points_);
  const std::map<std::int64_t, std::vector<SideRows>> made = side_rows_by_maker(config());
  has_side_rows_ = !made.empty();
  if (made.contains(SideRows::front) && std::ranges::any_of(part_.chunks, &ModelChunk::embeddings))
    per_layer_inputs_.emplace(setup_, parameters_, points_);
  for (std::int64_t i = 0; i < config().num_layers(); ++i) {
    const TensorName name = block_name(i);
    if (!part_.has(name)) continue;
    const BlockKind kind = config().blocks[static_cast<std::size_t>(i)];
    const auto of_block = made.find(i);
    blocks_.push_back(
        make_block(i, kept_name(cat(kind, " block ", i)), name, kind,
                   of_block == made.end() ? std::span<const SideRows>() : std::span(of_block->second)));
  }
  for (std::size_t chunk = 0; chunk < part_.chunks.size(); ++chunk) {
    if (const auto [first, end] = blocks_of(chunk); first < end)
      expect(blocks_[first].form != Residual::shared_norm, "block ", blocks_[first].number,
             " shares the norm of a block that is not here");
    const ModelChunk& c = part_.chunks[chunk];
    boundaries_.emplace_back(
        side_boundary(setup_, part_.shard, c.first_block),
        side_boundary(setup_, part_.shard, std::min(c.end_block, config().num_layers())));
  }
  if (part_.head()) add_mtp_depths();
}

Stack::Block Stack::make_block(std::int64_t number, const char* owner, const TensorName& name, BlockKind kind,
                               std::span<const SideRows> made) {
  const BlockConfig& sizes = config().of_tensor(name);
  SharedWays* const ways = ways_of(name);
  Block layer{number,
              owner,
              sizes.residual,
              {},
              {},
              parameters_.find(name / layer_scalar),
              {},
              {},
              trains_mixer(setup_, name, kind),
              ways,
              !config().shares_norm_with_next(name),
              kind->make({setup_, sizes, parameters_, points_, ways, made}, mixer_of(name))};
  if (has_norm_before(layer.form)) layer.norm.emplace(config(), parameters_, name / "norm");
  if (has_norm_after(layer.form)) layer.norm_after.emplace(config(), parameters_, name / post_norm);
  for (const SideRows& rows : made) layer.makes.push_back(rows.name);
  if (const auto block = name.block_of_model())
    for (const SideRows& rows : kind->side_rows(sizes, *block)) layer.reads.push_back(rows.name);
  if (auto* moe = dynamic_cast<MoeMixer*>(layer.mixer.get())) moe_layers_.push_back(moe);
  return layer;
}

SharedWays* Stack::ways_of(const TensorName& block) {
  if (!config().shares_norm(block)) return nullptr;
  if (ways_.empty() || config().of_tensor(block).residual != Residual::shared_norm)
    ways_.push_back(std::make_unique<SharedWays>());
  return ways_.back().get();
}

Var Stack::run_mixer(Context& ctx, const Block& block, const Var& x, const MixerCall& call,
                     bool backward) const {
  if (!activation_checkpointing || !backward) return block.mixer->forward(ctx, x, call);
  // The closures of a checkpoint outlive this call.
  const RecomputedMany mixer = [&b = block, sequences = call.sequences, state = call.state,
                                record = call.record](Context& c, std::span<const Var> in) {
    SideStream side;
    for (std::size_t i = 0; i < b.reads.size(); ++i) side.set(b.reads[i], in[i + 1]);
    std::vector<Var> out{b.mixer->forward(c, in[0], {sequences, state, record, &side})};
    for (const TensorName& name : b.makes) out.push_back(side.get(name));
    return out;
  };
  std::vector<Var> in{x};
  for (const TensorName& name : block.reads) in.push_back(call.side->get(name));
  std::vector<Var> out = checkpoint(ctx, "block", mixer, in);
  for (std::size_t i = 0; i < block.makes.size(); ++i) call.side->set(block.makes[i], std::move(out[i + 1]));
  return std::move(out.front());
}

Var Stack::run_block(Context& ctx, const Block& block, OnNorm& common, const MixerCall& call) const {
  const bool backward = ctx.tape && (block.trained || common.rows.needs_grad() ||
                                     std::ranges::any_of(block.reads, [&](const TensorName& name) {
                                       return call.side->get(name).needs_grad();
                                     }));
  // What blocks exchange together is no part of a checkpoint: a replay would exchange it for each of them.
  const auto run = [&] {
    if (block.ways && block.norm) common.rows = apply(block.ways->in, ctx, common.rows, call.sequences);
    Var y = run_mixer(ctx, block, common.rows, call, backward);
    if (!block.ways || !block.ways->out || block.norm_after) return y;
    common.sum = common.sum.defined() ? add(ctx, common.sum, y) : y;
    return block.last_on_norm ? block.ways->out(ctx, common.sum, call.sequences) : Var();
  };
  if (!hooks || block.number >= config().num_layers()) return run();  // multi-token prediction has none
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

std::pair<std::size_t, std::size_t> Stack::blocks_of(std::size_t chunk) const {
  const ModelChunk& c = part_.chunks.at(chunk);
  const auto first = std::ranges::lower_bound(blocks_, c.first_block, {}, &Block::number);
  const auto end = std::ranges::lower_bound(blocks_, c.end_block, {}, &Block::number);
  return {first - blocks_.begin(), end - blocks_.begin()};
}

std::int64_t Stack::all_rows(const Sequences& sequences, bool decodes) const {
  return (token_rows && !decodes ? token_rows(sequences) : sequences).tokens();
}

Var Stack::take_in(Context& ctx, const ForwardInput& input, SideStream& side) const {
  const SideBoundary& boundary = boundaries_[input.chunk].first;
  if (boundary.rows.empty()) return input.residual;
  const std::int64_t all = all_rows(input.sequences, input.state != nullptr);
  const std::int64_t stream = boundary.stream_rows(input.residual.value().numel(), all);
  const std::vector<Var> parts = unpack(ctx, input.residual, boundary.shapes(stream, all));
  for (std::size_t i = 0; i < boundary.rows.size(); ++i) side.set(boundary.rows[i].name, parts[i + 1]);
  return parts.front();
}

Var Stack::send_on(Context& ctx, const Var& residual, std::size_t chunk, const SideStream& side) const {
  const SideBoundary& boundary = boundaries_[chunk].second;
  if (boundary.rows.empty()) return residual;
  std::vector<Var> parts{residual};
  for (const SideBoundary::Passed& rows : boundary.rows) parts.push_back(side.get(rows.name));
  return pack(ctx, parts);
}

Var Stack::forward(Context& ctx, const ForwardInput& input) {
  const Sequences& sequences = input.sequences;
  const ModelChunk& chunk = part_.chunks.at(input.chunk);
  const auto [first, end] = blocks_of(input.chunk);
  const AllocationOwner embeddings("embeddings");
  SideStream side;
  Var residual;
  if (chunk.embeddings) {
    residual = embed(ctx, input.ids, sequences, token_rows && !input.state);
    if (per_layer_inputs_) (*per_layer_inputs_)(ctx, input.ids, residual, sequences, side);
  } else {
    residual = take_in(ctx, input, side);
  }
  const auto call_of = [&](std::size_t i) -> MixerCall {
    return {sequences, input.state ? input.state->blocks[first + i].get() : nullptr,
            input.records ? (*input.records)[i].get() : nullptr, has_side_rows_ ? &side : nullptr};
  };
  const Var out = run_blocks(ctx, std::span(blocks_).subspan(first, end - first),
                             chunk.head ? &tail_->norm() : nullptr, std::move(residual), call_of);
  return chunk.head ? out : send_on(ctx, out, input.chunk, side);
}

Var Stack::embed(Context& ctx, const Tensor& ids, const Sequences& sequences, bool cut,
                 std::size_t depth) const {
  (cut ? token_rows(sequences) : sequences).check("model", ids.numel());
  return (*front_)(ctx, ids, sequences, depth);
}

Var Stack::run_blocks(Context& ctx, std::span<const Block> blocks, const Norm* last_norm, Var residual,
                      const std::function<MixerCall(std::size_t)>& call_of) const {
  // Null for a block without a norm before its mixer, and where the residual sum is returned.
  const auto norm_before = [&](std::size_t i) -> const Norm* {
    if (i == blocks.size()) return last_norm;
    return blocks[i].norm ? &*blocks[i].norm : nullptr;
  };
  const auto rows_of = [&](std::size_t i) {
    if (const Norm* const norm = norm_before(i)) return (*norm)(ctx, residual);
    // A mixer that reads the residual stream has a gradient of its own, whose sum does not depend on whether
    // the mixer is computed again.
    return i == blocks.size() ? residual : reshape(ctx, residual, residual.shape());
  };
  OnNorm common{rows_of(0), {}};
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const Block& block = blocks[i];
    const AllocationOwner owner(block.owner);
    const trace::Span span(trace::Category::forward, block.owner, {{"layer", block.number}});
    Var out = run_block(ctx, block, common, call_of(i));
    if (!out.defined()) continue;
    if (block.norm_after) out = (*block.norm_after)(ctx, out);
    const Norm* next = norm_before(i + 1);
    if (next && !block.scalar) {
      // One operation adds this block to the residual stream and applies the norm of the next block.
      const ResidualNorm sum = next->of_sum(ctx, out, residual);
      residual = sum.sum;
      common = {sum.normed, {}};
      continue;
    }
    residual = add(ctx, out, residual);
    if (block.scalar) residual = scale_by(ctx, std::move(residual), block.scalar->value);
    const bool on_same_norm = i + 1 < blocks.size() && blocks[i + 1].form == Residual::shared_norm;
    if (!on_same_norm) common = {rows_of(i + 1), {}};
  }
  return common.rows;
}

Tensor Stack::logits(const Tensor& hidden) const { return tail_->logits(hidden); }

Var Stack::loss(Context& ctx, const Var& hidden, const Labels& labels, const Sequences& sequences,
                const GradScale& grad_scale, Tensor* token_losses) {
  return tail_->loss(ctx, hidden, labels, sequences, grad_scale, loss_chunk_rows, token_losses);
}

DecodeState Stack::make_state(std::int64_t sequences) const {
  DecodeState state;
  for (const Block& block : blocks_) state.blocks.push_back(block.mixer->make_state(sequences));
  return state;
}

std::vector<MoeRecord*> moe_records(const BlockRecords& records) {
  std::vector<MoeRecord*> found;
  for (const auto& record : records)
    if (auto* moe = dynamic_cast<MoeRecord*>(record.get())) found.push_back(moe);
  return found;
}

BlockRecords Stack::make_records(std::size_t chunk) const {
  BlockRecords records;
  const auto [first, end] = blocks_of(chunk);
  for (std::size_t i = first; i < end; ++i) records.push_back(blocks_[i].mixer->make_record());
  return records;
}

}  // namespace nemocube
