#include "ops/attention/attention.h"

#include <cmath>

#include "core/kernels.h"
#include "core/profile.h"
#include "ops/attention/attention_kernels.h"

namespace nemocube {
namespace {

enum class AttentionVariant { tiled, plain };
const Variants<AttentionVariant> attention_variants("attention", {{AttentionVariant::tiled, "tiled"},
                                                                  {AttentionVariant::plain, "plain"}});

void check_inputs(const cpu::AttentionInputs& in) {
  const AttentionOptions& o = in.options;
  require(o.heads >= 1 && o.kv_heads >= 1 && o.heads % o.kv_heads == 0,
          "attention: heads: want a multiple of ", o.kv_heads, " kv heads, got ", o.heads);
  require(o.head_dim >= 1, "attention: head_dim: want at least 1, got ", o.head_dim);
  require(std::isfinite(o.scale) && o.scale >= 0, "attention: scale: want a finite value >= 0, got ",
          o.scale);
  require(in.q.defined() && in.q.ndim() == 2, "attention: q: want 2 dimensions");
  require(in.k.defined() && in.k.ndim() == 2, "attention: k: want 2 dimensions");
  check_shape("attention: q", in.q, {in.q.dim(0), o.heads * o.head_dim});
  check_shape("attention: k", in.k, {in.k.dim(0), o.kv_heads * o.head_dim});
  check_shape("attention: v", in.v, in.k.shape());
  require(is_float(in.q.dtype()), "attention: q: want f32, f64 or bf16, got ", in.q.dtype());
  check_dtype("attention: k", in.k, in.q.dtype());
  check_dtype("attention: v", in.v, in.q.dtype());
  in.q_seqs.check("attention: q", in.q.dim(0));
  in.kv_seqs.check("attention: k", in.k.dim(0));
  require(in.q_seqs.count() == in.kv_seqs.count(), "attention: q has ", in.q_seqs.count(),
          " sequences, k and v have ", in.kv_seqs.count());
}

// A tensor for the gradient of one input. It is new memory when the input is `shared`: the same value as
// another input, whose gradient must not be written to the same place.
Tensor place_for(GradNode* node, bool shared, DType dtype) {
  if (!node) return {};
  const Tensor own = shared ? Tensor() : node->buffer();
  return own && own.dtype() == dtype ? own : Tensor::empty(node->shape(), dtype, node->device());
}

}  // namespace

Var attention(Context& ctx, const Var& q, const Var& k, const Var& v, const AttentionOptions& options,
              const Sequences& q_seqs, const Sequences& kv_seqs) {
  cpu::AttentionInputs in{q.value(), k.value(), v.value(), options, q_seqs, kv_seqs};
  check_inputs(in);
  if (options.scale == 0) in.options.scale = 1 / std::sqrt(static_cast<double>(options.head_dim));
  const bool plain = attention_variants.chosen(ctx) == AttentionVariant::plain;
  const cpu::AttentionResult out{
      Tensor::empty(in.q.shape(), in.q.dtype(), in.q.device()),
      Tensor::empty({in.q.dim(0), options.heads}, accumulate_dtype(in.q.dtype()), in.q.device())};
  static Zone forward_zone("attention/forward"), backward_zone("attention/backward");
  {
    const ZoneTimer timer(forward_zone);
    (plain ? cpu::attention_plain_forward : cpu::attention_forward)(out, in);
  }
  Var result = make_result(out.o, ctx.records({&q, &k, &v}));
  if (result.needs_grad())
    ctx.tape->record("attention", [in = std::move(in), out, plain, nq = q.node(), nk = k.node(),
                                   nv = v.node(), node = result.node()] {
      if (!node->filled()) return;
      const ZoneTimer timer(backward_zone);
      const Tensor d_o = node->take();
      const DType dtype = in.q.dtype();
      const cpu::AttentionGrads grads{place_for(nq.get(), nq == nk || nq == nv, dtype),
                                      place_for(nk.get(), nk == nq || nk == nv, dtype),
                                      place_for(nv.get(), nv == nq || nv == nk, dtype)};
      (plain ? cpu::attention_plain_backward : cpu::attention_backward)(grads, d_o, out, in);
      if (nq) nq->add(grads.dq);
      if (nk) nk->add(grads.dk);
      if (nv) nv->add(grads.dv);
    });
  return result;
}

}  // namespace nemocube
