#include "model/mixers/attention.h"

#include <algorithm>
#include <vector>

namespace nemocube {

/// Keys and values of every token so far, of each sequence; rows beyond `length` are room to grow.
struct AttentionMixer::State final : MixerState {
  struct Cache {
    Tensor k, v;
    std::int64_t length = 0;
  };
  std::vector<Cache> sequences;
};

AttentionMixer::AttentionMixer(const MixerSources& sources, const std::string& name)
    : q_proj_(sources, name + ".q_proj"),
      k_proj_(sources, name + ".k_proj"),
      v_proj_(sources, name + ".v_proj"),
      o_proj_(sources, name + ".o_proj") {
  sources.points.emplace(name + ".qkv.input", &qkv_input_);
  options_.head_dim = sources.config.head_dim;
  options_.heads = q_proj_.out_features() / options_.head_dim;
  options_.kv_heads = k_proj_.out_features() / options_.head_dim;
}

std::unique_ptr<MixerState> AttentionMixer::make_state(std::int64_t count) const {
  auto state = std::make_unique<State>();
  state->sequences.resize(static_cast<std::size_t>(count));
  return state;
}

namespace {
// Appends rows to a cache that doubles when full.
void append(Tensor& cache, std::int64_t length, const Tensor& rows) {
  const std::int64_t need = length + rows.rows();
  if (!cache.defined() || cache.dim(0) < need) {
    const std::int64_t room = std::max(need, cache.defined() ? 2 * cache.dim(0) : need + 64);
    Tensor grown = Tensor::empty({room, rows.cols()}, rows.dtype(), rows.device());
    if (length > 0) grown.narrow(0, 0, length).copy_from(cache.narrow(0, 0, length));
    cache = grown;
  }
  cache.narrow(0, length, rows.rows()).copy_from(rows);
}
}  // namespace

Tensor AttentionMixer::decode(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                              const Sequences& sequences, State& state) const {
  Tensor out = Tensor::empty(q.shape(), q.dtype(), q.device());
  for (std::int64_t i = 0; i < sequences.count(); ++i) {
    auto& cache = state.sequences[static_cast<std::size_t>(i)];
    const std::int64_t begin = sequences.begin(i), n = sequences.length(i);
    if (n == 0) continue;
    append(cache.k, cache.length, k.narrow(0, begin, n));
    append(cache.v, cache.length, v.narrow(0, begin, n));
    cache.length += n;
    const Var y = attention(ctx, q.narrow(0, begin, n), cache.k.narrow(0, 0, cache.length),
                            cache.v.narrow(0, 0, cache.length), options_, Sequences::uniform(1, n),
                            Sequences::uniform(1, cache.length));
    out.narrow(0, begin, n).copy_from(y.value());
  }
  return out;
}

Var AttentionMixer::forward(Context& ctx, const Var& x, const MixerCall& call) {
  const Sequences& sequences = call.sequences;
  const Var in = apply(qkv_input_, ctx, x, sequences);
  const Var q = q_proj_(ctx, in, sequences), k = k_proj_(ctx, in, sequences), v = v_proj_(ctx, in, sequences);
  Var y;
  if (call.state)
    y = decode(ctx, q.value(), k.value(), v.value(), sequences, static_cast<State&>(*call.state));
  else
    y = core_ ? core_(ctx, q, k, v, options_, sequences)
              : attention(ctx, q, k, v, options_, sequences, sequences);
  return o_proj_(ctx, y, sequences);
}

}  // namespace nemocube
