#include "ops/attention/attention.h"

#include "ops/attention/partial_attention.h"

namespace nemocube {
namespace {

// A tensor for the gradient of one input. It is new memory when the input is `shared`: the same value as
// another input, whose gradient must not be written to the same place.
Tensor place_for(GradNode* node, bool shared, DType dtype) {
  if (!node) return {};
  const Tensor own = shared ? Tensor() : node->buffer();
  return own && own.dtype() == dtype ? own : Tensor::empty(node->shape(), dtype, node->device());
}

AttentionPairs make_pairs(const Sequences& queries, const Sequences& keys, Device device) {
  std::vector<AttentionPair> pairs;
  for (std::int64_t i = 0; i < queries.count(); ++i)
    pairs.push_back({{queries.begin(i), queries.end(i)}, {keys.begin(i), keys.end(i)}});
  return {std::move(pairs), device};
}

const AttentionPairs& pairs_of(const Sequences& queries, const Sequences& keys, Device device) {
  if (queries.same(keys))
    return queries.derived<AttentionPairs>(device, {},
                                           [device](const Sequences& s) { return make_pairs(s, s, device); });
  return queries.derived<AttentionPairs>(device, keys.offsets(),
                                         [&] { return make_pairs(queries, keys, device); });
}

}  // namespace

Var attention(Context& ctx, const Var& q, const Var& k, const Var& v, const AttentionOptions& options,
              const Sequences& q_seqs, const Sequences& kv_seqs) {
  AttentionInputs in = attention_inputs(ctx, q.value(), k.value(), v.value(), options);
  q_seqs.check("attention: q", in.q.dim(0));
  kv_seqs.check("attention: k", in.k.dim(0));
  require(q_seqs.count() == kv_seqs.count(), "attention: q has ", q_seqs.count(), " sequences, k and v have ",
          kv_seqs.count());
  in.pairs = pairs_of(q_seqs, kv_seqs, in.q.device());
  const AttentionResult out{
      Tensor::empty(in.q.shape(), in.q.dtype(), in.q.device()),
      Tensor::empty({in.q.dim(0), options.heads}, accumulate_dtype(in.q.dtype()), in.q.device())};
  partial_attention(out, in, Into::set);
  Var result = make_result(out.o, ctx.records({&q, &k, &v}));
  if (result.needs_grad())
    ctx.tape->record("attention", [in = std::move(in), out, nq = q.node(), nk = k.node(), nv = v.node(),
                                   node = result.node()] {
      if (!node->filled()) return;
      const Tensor d_o = node->take();
      const DType dtype = in.q.dtype();
      const AttentionGrads grads{place_for(nq.get(), nq == nk || nq == nv, dtype),
                                 place_for(nk.get(), nk == nq || nk == nv, dtype),
                                 place_for(nv.get(), nv == nq || nv == nk, dtype)};
      partial_attention_backward(grads, d_o, out, in, Into::set);
      if (nq) nq->add(grads.dq);
      if (nk) nk->add(grads.dk);
      if (nv) nv->add(grads.dv);
    });
  return result;
}

}  // namespace nemocube
