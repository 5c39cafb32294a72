#include "model/blocks/attention/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "model/blocks/attention/alibi_slopes.h"
#include "ops/attention/block_diffusion.h"
#include "ops/attention/partial_attention.h"
#include "ops/gated_activation/gated_activation.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/scale_columns/scale_columns.h"
#include "ops/view/view.h"

namespace nemocube {

TensorName shared_keys_of(std::int64_t block) { return mixer_name(block, "keys"); }
TensorName shared_values_of(std::int64_t block) { return mixer_name(block, "values"); }

/// Keys and values of every token so far. A sequence has a range of the rows, of which the first `length` are
/// in use and the others are room to grow.
struct AttentionMixer::State final : MixerState {
  struct Cached {
    Range rows;
    std::int64_t length = 0;
  };
  std::vector<Cached> sequences;
  Tensor k, v;

  void append(const Tensor& new_k, const Tensor& new_v, const Sequences& of_new);

 private:
  void make_room(const Tensor& like, const Sequences& for_new);
};

AttentionMixer::AttentionMixer(const MixerSources& sources, const TensorName& name)
    : all_heads_(sources.config.attention.num_attention_heads),
      alibi_(sources.config.attention.alibi),
      output_gate_(sources.config.attention.output_gate),
      input_multiplier_(sources.config.attention.input_multiplier),
      output_multiplier_(sources.config.attention.output_multiplier),
      value_norm_eps_(sources.config.attention.value_norm ? sources.config.layer_norm_epsilon : 0),
      keys_are_values_(sources.config.attention.keys_are_values),
      kv_block_(sources.config.attention.kv_block.value_or(name.block)),
      shared_k_(shared_keys_of(kv_block_)),
      shared_v_(shared_values_of(kv_block_)),
      reads_kv_(sources.config.attention.kv_block.has_value()),
      makes_kv_(!sources.made.empty()),
      o_proj_(sources, name / "o_proj", PointRole::way_out) {
  const AttentionConfig& config = sources.config.attention;
  options_.head_dim = config.head_dim;
  if (config.packed) {
    qkv_proj_.emplace(sources, name / "qkv_proj", PointRole::way_in);
    options_.heads = options_.kv_heads = qkv_proj_->out_features() / 3 / config.head_dim;
  } else {
    q_proj_.emplace(sources, name / "q_proj");
    if (!reads_kv_) k_proj_.emplace(sources, name / "k_proj");
    if (!reads_kv_ && !keys_are_values_) v_proj_.emplace(sources, name / "v_proj");
    options_.heads = q_proj_->out_features() / ((output_gate_ ? 2 : 1) * config.head_dim);
    if (k_proj_) options_.kv_heads = k_proj_->out_features() / config.head_dim;
    SharedWays* const way_in = sources.way_in();
    sources.points.emplace(name / "qkv.input",
                           TransformPoint{way_in ? &way_in->in : &qkv_input_, PointRole::way_in,
                                          name / "q_proj", nullptr, way_in});
  }
  options_.scale = config.score_scale;
  if (config.key_multiplier != 1)
    options_.scale =
        config.key_multiplier *
        (config.score_scale > 0 ? config.score_scale : 1 / std::sqrt(static_cast<double>(config.head_dim)));
  options_.window = config.window;
  diffusion_ = sources.setup.choices.diffusion;
  rope_ = config.rope;
  position_scale_ = config.position_scale;
  if (config.head_norm) {
    const double eps = sources.config.layer_norm_epsilon;
    q_norm_.emplace(*config.head_norm, eps, sources.parameters, name / "q_norm");
    if (!reads_kv_) k_norm_.emplace(*config.head_norm, eps, sources.parameters, name / "k_norm");
  }
}

std::unique_ptr<MixerState> AttentionMixer::make_state(std::int64_t count) const {
  auto state = std::make_unique<State>();
  state->sequences.resize(static_cast<std::size_t>(count));
  return state;
}

// Gives sequences that are full twice the rows.
void AttentionMixer::State::make_room(const Tensor& like, const Sequences& for_new) {
  std::vector<Cached> grown = sequences;
  bool full = false;
  std::int64_t end = 0;
  for (std::size_t i = 0; i < grown.size(); ++i) {
    const std::int64_t room = grown[i].rows.size(),
                       need = grown[i].length + for_new.length(static_cast<std::int64_t>(i));
    full = full || need > room;
    const std::int64_t rows = need <= room ? room : room > 0 ? std::max(need, 2 * room) : need + 64;
    grown[i].rows = {end, end + rows};
    end += rows;
  }
  if (!full) return;
  for (Tensor* cache : {&k, &v}) {
    const Tensor to = Tensor::empty({end, like.cols()}, like.dtype(), like.device());
    for (std::size_t i = 0; i < grown.size(); ++i)
      if (const std::int64_t n = grown[i].length; n > 0)
        to.narrow(0, grown[i].rows.begin, n).copy_from(cache->narrow(0, sequences[i].rows.begin, n));
    *cache = to;
  }
  sequences = std::move(grown);
}

void AttentionMixer::State::append(const Tensor& new_k, const Tensor& new_v, const Sequences& of_new) {
  make_room(new_k, of_new);
  for (std::int64_t i = 0; i < of_new.count(); ++i) {
    Cached& cached = sequences[static_cast<std::size_t>(i)];
    const std::int64_t first = of_new.begin(i), n = of_new.length(i), end = cached.rows.begin + cached.length;
    if (n == 0) continue;
    k.narrow(0, end, n).copy_from(new_k.narrow(0, first, n));
    v.narrow(0, end, n).copy_from(new_v.narrow(0, first, n));
    cached.length += n;
  }
}

namespace {
/// What the sequences of a call keep of the pairs of their rows and the cached ones.
struct CachePairs {
  AttentionPairs pairs;
};
}  // namespace

AttentionMixer::State& AttentionMixer::cache(const Tensor& k, const Tensor& v, const MixerCall& call) const {
  auto& own = static_cast<State&>(*call.state);
  if (!reads_kv_ && !makes_kv_) {
    append(own, k, v, call.sequences);
    return own;
  }
  MixerState*& shared = call.side_rows().cache_of(kv_block_);
  if (!shared) {
    append(own, k, v, call.sequences);
    shared = &own;
  }
  return static_cast<State&>(*shared);
}

void AttentionMixer::append(State& state, const Tensor& k, const Tensor& v,
                            const Sequences& sequences) const {
  if (k.rows() == 0) return;
  if (rope_.type != RopeType::none || position_scale_.beta != 0)
    for (std::int64_t i = 0; i < sequences.count(); ++i) {
      const std::int64_t cached = state.sequences[static_cast<std::size_t>(i)].length;
      if (sequences.length(i) == 0) continue;
      const std::int64_t position = sequences.positions()[static_cast<std::size_t>(sequences.begin(i))];
      expect(position == cached, "sequence ", i, " goes on at position ", position, " behind ", cached,
             " rows");
    }
  state.append(k, v, sequences);
}

Tensor AttentionMixer::decode(Context& ctx, const Tensor& q, const State& state,
                              const AttentionOptions& options, const Sequences& sequences) const {
  const Tensor out = Tensor::empty(q.shape(), q.dtype(), q.device());
  if (q.rows() == 0) return out;
  std::vector<AttentionPair> pairs;
  std::vector<std::int64_t> key;
  for (std::int64_t i = 0; i < sequences.count(); ++i) {
    const State::Cached& cached = state.sequences[static_cast<std::size_t>(i)];
    const Range keys{cached.rows.begin, cached.rows.begin + cached.length};
    pairs.push_back({{sequences.begin(i), sequences.end(i)}, keys});
    key.insert(key.end(), {keys.begin, keys.end});
  }
  AttentionInputs in = attention_inputs(ctx, q, state.k, state.v, options);
  in.pairs = sequences
                 .derived<CachePairs>(q.device(), key,
                                      [&] {
                                        return CachePairs{{std::move(pairs), q.device()}};
                                      })
                 .pairs;
  const Tensor lse = Tensor::empty({q.rows(), options.heads}, accumulate_dtype(q.dtype()), q.device());
  partial_attention({out, lse}, in, Into::set);
  return out;
}

namespace {
/// The heads of rows [T, heads head_dim], one after another: [T heads, head_dim].
Var heads_of(Context& ctx, const Var& x, std::int64_t head_dim) {
  return reshape(ctx, x, {x.value().numel() / head_dim, head_dim});
}
/// The reverse, for so many heads.
Var rows_of_heads(Context& ctx, const Var& x, std::int64_t heads) {
  return reshape(ctx, x, {x.value().rows() / heads, heads * x.value().cols()});
}

/// One more than the last position of any token.
std::int64_t positions_of(const Sequences& sequences) {
  const auto of_tokens =
      std::span(sequences.positions()).first(static_cast<std::size_t>(sequences.token_count()));
  return of_tokens.empty() ? 0 : std::ranges::max(of_tokens) + 1;
}
}  // namespace

Var AttentionMixer::attend(Context& ctx, const Var& q, const Var& k, const Var& v,
                           const AttentionOptions& options, const Sequences& sequences) const {
  if (diffusion_.paradigm == Paradigm::block_diff) {
    expect(!core_, "block diffusion over several devices");
    return block_diffusion_attention(ctx, q, k, v, options, diffusion_.block_size, sequences);
  }
  AttentionOptions seen = options;
  seen.causal = diffusion_.paradigm == Paradigm::autoregressive;
  return core_ ? core_(ctx, q, k, v, seen, sequences) : attention(ctx, q, k, v, seen, sequences, sequences);
}

AttentionMixer::Projected AttentionMixer::project(Context& ctx, const Var& x,
                                                  const Sequences& sequences) const {
  Projected p;
  const std::int64_t width = options_.head_dim;
  if (qkv_proj_) {
    const std::int64_t all = options_.heads * width;
    const auto parts = split_last(ctx, (*qkv_proj_)(ctx, x, sequences), std::array{all, all, all});
    return {parts[0], parts[1], parts[2], {}};
  }
  const Var in = apply(qkv_input_, ctx, x, sequences);
  p.q = (*q_proj_)(ctx, in, sequences);
  if (k_proj_) p.k = (*k_proj_)(ctx, in, sequences);
  if (v_proj_) p.v = (*v_proj_)(ctx, in, sequences);
  if (keys_are_values_) p.v = p.k;
  if (q_norm_) {
    Var heads = heads_of(ctx, p.q, output_gate_ ? 2 * width : width);
    if (output_gate_) {
      const auto halves = split_last(ctx, heads, std::array{width, width});
      heads = halves[0], p.gate = halves[1];
    }
    p.q = rows_of_heads(ctx, (*q_norm_)(ctx, heads), options_.heads);
    if (k_norm_) p.k = rows_of_heads(ctx, (*k_norm_)(ctx, heads_of(ctx, p.k, width)), options_.kv_heads);
  }
  if (value_norm_eps_ > 0 && p.v.defined())
    p.v = rows_of_heads(ctx, rmsnorm(ctx, heads_of(ctx, p.v, width), Var(), value_norm_eps_),
                        options_.kv_heads);
  return p;
}

Var AttentionMixer::forward(Context& ctx, const Var& x, const MixerCall& call) {
  const Sequences& sequences = call.sequences;
  auto [q, k, v, gate] = project(ctx, scale(ctx, x, input_multiplier_), sequences);
  const std::int64_t width = options_.head_dim;
  if (rope_.type != RopeType::none) {
    const RotaryFrequencies frequencies =
        rotary_frequencies(rope_, options_.head_dim, depends_on_batch(rope_) ? positions_of(sequences) : 0);
    if (reads_kv_) k = Tensor::empty({q.value().rows(), 0}, q.value().dtype(), q.value().device());
    RotatedHeads turned = rope(ctx, std::move(q), std::move(k), options_.head_dim, frequencies,
                               rows_ ? rows_(sequences) : sequences);
    q = std::move(turned.q);
    k = std::move(turned.k);
  }
  if (reads_kv_) {
    k = call.side_rows().get(shared_k_);
    v = call.side_rows().get(shared_v_);
  } else if (makes_kv_) {
    call.side_rows().set(shared_k_, k);
    call.side_rows().set(shared_v_, v);
  }
  AttentionOptions options = options_;
  options.kv_heads = k.value().cols() / width;
  options.query_scale =
      query_scales(position_scale_, rows_ ? rows_(sequences) : sequences, accumulate_dtype(q.value().dtype()),
                   q.value().device(), diffusion_.paradigm == Paradigm::block_diff && !call.state);
  if (alibi_)
    options.slopes =
        alibi_slopes(all_heads_, {first_head_, first_head_ + options.heads}, sequences, q.value().device());
  Var y;
  if (call.state)
    y = decode(ctx, q.value(), cache(k.value(), v.value(), call), options, sequences);
  else
    y = attend(ctx, q, k, v, options, sequences);
  if (output_gate_) {
    const Var gated = gated_activation(ctx, gate, heads_of(ctx, y, width), GateActivation::sigmoid);
    y = rows_of_heads(ctx, gated, options_.heads);
  }
  return scale(ctx, o_proj_(ctx, y, sequences), output_multiplier_);
}

}  // namespace nemocube
