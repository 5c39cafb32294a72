#include "ops/attention/block_diffusion.h"

#include <array>
#include <utility>
#include <vector>

#include "ops/attention/partial_attention.h"

namespace nemocube {
namespace {

/// Who meets whom. The sequences keep it for all layers.
struct Meetings {
  AttentionPairs clean;          ///< clean rows and clean rows
  AttentionPairs own_block;      ///< noised rows and noised rows
  AttentionPairs blocks_before;  ///< noised rows and clean rows
  void refill(const Meetings& made) {
    clean.refill(made.clean);
    own_block.refill(made.own_block);
    blocks_before.refill(made.blocks_before);
  }
};

Meetings make_meetings(const Sequences& sequences, std::int64_t block, Device device) {
  std::vector<AttentionPair> clean, own_block, blocks_before;
  const auto rows = [&](std::int64_t i) { return Range{sequences.begin(i), sequences.end(i)}; };
  for (std::int64_t i = 0; i < sequences.count(); i += 2) {
    const bool alone = i + 1 == sequences.count();
    clean.push_back({rows(alone ? i : i + 1), rows(alone ? i : i + 1)});
    if (alone) break;
    require(sequences.length(i) == sequences.length(i + 1),
            "block diffusion: want halves of one length, got ", sequences.length(i), " noised and ",
            sequences.length(i + 1), " clean rows");
    // A query that stands at the last key of its block, with a window of a block, sees its block.
    own_block.push_back({rows(i), rows(i), block - 1});
    blocks_before.push_back({rows(i), rows(i + 1), -1});
  }
  return {{std::move(clean), device}, {std::move(own_block), device}, {std::move(blocks_before), device}};
}

/// A call of partial attention.
struct Part {
  AttentionInputs in;
  Into how;  ///< of the rows of q and k
};

std::array<Part, 3> parts_of(const AttentionInputs& in, const Meetings& meetings, std::int64_t block) {
  AttentionInputs clean = in, own_block = in, blocks_before = in;
  clean.pairs = meetings.clean;
  own_block.pairs = meetings.own_block;
  own_block.options.query_block = own_block.options.window = block;
  blocks_before.pairs = meetings.blocks_before;
  blocks_before.options.query_block = block;
  // Noised rows are among the queries, and clean rows among the keys, of an earlier part.
  return {Part{std::move(clean), Into::set}, Part{std::move(own_block), Into::set},
          Part{std::move(blocks_before), Into::add}};
}

}  // namespace

Var block_diffusion_attention(Context& ctx, const Var& q, const Var& k, const Var& v,
                              const AttentionOptions& options, std::int64_t block,
                              const Sequences& sequences) {
  require(block >= 1, "block diffusion: block: want at least 1, got ", block);
  require(options.causal && options.window == 0 && options.query_block == 1 && !options.slopes,
          "block diffusion: want causal attention without a window, slopes and a query_block");
  const AttentionInputs in = attention_inputs(ctx, q.value(), k.value(), v.value(), options);
  sequences.check("block diffusion: q", in.q.dim(0));
  sequences.check("block diffusion: k", in.k.dim(0));
  const Device device = in.q.device();
  const Meetings& meetings = sequences.derived<Meetings>(
      device, {block}, [=](const Sequences& from) { return make_meetings(from, block, device); });
  const DType dtype = in.q.dtype(), sums = accumulate_dtype(dtype);
  AttentionResult out{Tensor::empty(in.q.shape(), sums, device),
                      Tensor::empty({in.q.dim(0), options.heads}, sums, device)};
  std::array<Part, 3> parts = parts_of(in, meetings, block);
  for (const Part& part : parts) partial_attention(out, part.in, part.how);
  out.o = out.o.to(dtype);
  Var result = make_result(out.o, ctx.records({&q, &k, &v}));
  if (result.needs_grad())
    ctx.tape->record("block_diffusion_attention", [parts = std::move(parts), out, dtype, sums, nq = q.node(),
                                                   nk = k.node(), nv = v.node(), node = result.node()] {
      if (!node->filled()) return;
      const Tensor d_o = node->take();
      const auto sum_of = [&](const std::shared_ptr<GradNode>& of) {
        return of ? Tensor::empty(of->shape(), sums, of->device()) : Tensor();
      };
      const AttentionGrads grads{sum_of(nq), sum_of(nk), sum_of(nv)};
      for (const Part& part : parts) partial_attention_backward(grads, d_o, out, part.in, part.how);
      const auto add = [&](const std::shared_ptr<GradNode>& of, const Tensor& sum) {
        if (of) of->add(sum.to(dtype));
      };
      add(nq, grads.dq);
      add(nk, grads.dk);
      add(nv, grads.dv);
    });
  return result;
}

}  // namespace nemocube
