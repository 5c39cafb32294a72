#include "ops/attention/attention_tiles_cpu.h"
#include "ops/tile.h"
#include "ops/transpose.h"

namespace nemocube::cpu {
namespace {

using namespace attention;

template <class T>
class Backward {
  using A = acc_t<T>;

 public:
  /// `keys`: rows of K, V, dK and dV held at once.
  Backward(const AttentionGrads& out, const Tensor& d_o, const AttentionResult& result,
           const AttentionInputs& in, const Geometry& g, std::int64_t keys, Into how)
      : out_(out), d_o_(d_o), result_(result), in_(in), g_(g), how_(how), changes_(in, g) {
    const std::int64_t block = g.padded_columns * g.head_dim, tile = key_tile * g.padded_columns,
                       span = keys * g.head_dim;
    scratch_ =
        Tensor::empty({5 * block + 2 * tile + 4 * span + 3 * g.padded_columns}, dtype_of<A>(), Device::cpu);
    A* at = scratch_.data<A>();
    const auto take = [&at](std::int64_t n) { return std::exchange(at, at + n); };
    q_ = take(block);
    q_t_ = take(block);
    do_ = take(block);
    do_t_ = take(block);
    dq_ = take(block);
    p_ = take(tile);
    ds_ = take(tile);
    k_ = take(span);
    v_ = take(span);
    dk_ = take(span);
    dv_ = take(span);
    lse_ = take(g.padded_columns);
    delta_ = take(g.padded_columns);
    passed_ = take(g.padded_columns);
  }

  /// All three gradients of one span.
  void span(const Span& span) {
    load_keys(span, 0, span.k_count);
    for (std::int64_t b = 0; b * g_.queries < span.q_count; ++b) {
      const Block block(g_, span, b);
      load_block(span, block);
      for (std::int64_t k0 = block.key_begin, end; k0 < block.key_end; k0 = end) {
        end = tile_end(k0, block.key_end);
        score_tile(span, block, k0, end, k0);
        add_dq(block, k0);
        add_dkv(block, k0);
      }
      store_dq(span, block);
    }
    store_keys(span, 0, span.k_count);
  }

  /// dq of one block.
  void block(const Span& span, const Block& block) {
    load_block(span, block);
    for (std::int64_t k0 = block.key_begin, end; k0 < block.key_end; k0 = end) {
      end = tile_end(k0, block.key_end);
      load_keys(span, k0, end - k0);
      score_tile(span, block, k0, end, 0);
      add_dq(block, 0);
    }
    store_dq(span, block);
  }

  /// dk and dv of the keys [k0, k0 + key_tile).
  void keys(const Span& span, std::int64_t k0) {
    const std::int64_t n = std::min(key_tile, span.k_count - k0);
    load_keys(span, k0, n);
    for (std::int64_t b = 0; b * g_.queries < span.q_count; ++b) {
      const Block block(g_, span, b);
      const std::int64_t begin = std::max(k0, block.key_begin), end = std::min(k0 + n, block.key_end);
      if (begin >= end) continue;
      load_block(span, block);
      score_tile(span, block, begin, end, begin - k0);
      add_dkv(block, begin - k0);
    }
    store_keys(span, k0, n);
  }

 private:
  void load_keys(const Span& span, std::int64_t first, std::int64_t count) {
    copy_keys<T>(k_, in_.k, g_, span, first, count);
    copy_keys<T>(v_, in_.v, g_, span, first, count);
    std::fill_n(dk_, count * g_.head_dim, A(0));
    std::fill_n(dv_, count * g_.head_dim, A(0));
  }

  void load_block(const Span& span, const Block& block) {
    const std::int64_t columns = block.padded_columns, hd = g_.head_dim;
    copy_block<T>(dq_, result_.o, g_, span, block, A(1));
    copy_block<T>(do_, d_o_, g_, span, block, A(1));
    transpose(q_t_, columns, dq_, hd, columns, hd);
    transpose(do_t_, columns, do_, hd, columns, hd);
    std::fill_n(delta_, columns, A(0));
    for (std::int64_t d = 0; d < hd; ++d)
      for (std::int64_t c = 0; c < columns; ++c) delta_[c] += do_t_[d * columns + c] * q_t_[d * columns + c];
    copy_block<T>(q_, in_.q, g_, span, block, changes_.factor());
    changes_.scale_queries(q_, span, block);
    changes_.begin(span, block);
    transpose(q_t_, columns, q_, hd, columns, hd);
    const A back = changes_.factor_back();
    for (std::int64_t c = 0; c < columns * hd; ++c) q_[c] *= back;
    // +inf makes the weights of padding 0.
    std::fill_n(lse_, columns, std::numeric_limits<A>::infinity());
    for (std::int64_t i = 0; i < block.count; ++i) {
      const A* lse = result_.lse.row<A>(span.q_begin + block.first + i) + span.kv_head * g_.group;
      for (std::int64_t h = 0; h < g_.group; ++h) lse_[i * g_.group + h] = lse[h] * static_cast<A>(log2_e);
    }
    std::fill_n(dq_, columns * hd, A(0));
  }

  /// P and dS of the tile of keys [k0, end); its rows of K and V are at row `at` of what is loaded.
  void score_tile(const Span& span, const Block& block, std::int64_t k0, std::int64_t end, std::int64_t at) {
    const std::int64_t columns = block.padded_columns, hd = g_.head_dim;
    n_ = end - k0;
    tile_gemm<A, false>(n_, columns, hd, k_ + at * hd, hd, q_t_, columns, p_, columns, false);
    tile_gemm<A, false>(n_, columns, hd, v_ + at * hd, hd, do_t_, columns, ds_, columns, false);
    for (std::int64_t j = 0; j < n_; ++j) {
      A* __restrict p = p_ + j * columns;
      A* __restrict ds = ds_ + j * columns;
      if (changes_.any()) changes_.apply(p, passed_, columns, k0 + j);
      for (std::int64_t c = 0; c < columns; ++c) p[c] = exp2_tile(p[c] - lse_[c]);
      hide(p, g_, span, block, k0 + j, A(0));
      for (std::int64_t c = 0; c < columns; ++c) ds[c] = p[c] * (ds[c] - delta_[c]);
      if (changes_.capped())
        for (std::int64_t c = 0; c < columns; ++c) ds[c] *= passed_[c];
    }
  }

  void add_dq(const Block& block, std::int64_t at) {
    const std::int64_t columns = block.padded_columns, hd = g_.head_dim;
    if (out_.dq) tile_gemm<A, true>(columns, hd, n_, ds_, columns, k_ + at * hd, hd, dq_, hd, true);
  }

  void add_dkv(const Block& block, std::int64_t at) {
    const std::int64_t columns = block.padded_columns, hd = g_.head_dim;
    if (out_.dv) tile_gemm<A, false>(n_, hd, columns, p_, columns, do_, hd, dv_ + at * hd, hd, true);
    if (out_.dk) tile_gemm<A, false>(n_, hd, columns, ds_, columns, q_, hd, dk_ + at * hd, hd, true);
  }

  void store_dq(const Span& span, const Block& block) {
    if (!out_.dq) return;
    const std::int64_t channels = g_.group * g_.head_dim;
    for (std::int64_t i = 0; i < block.count; ++i) {
      const std::int64_t row = span.q_begin + block.first + i;
      store_row<T>(out_.dq, row, span.kv_head * channels, dq_ + i * channels, channels,
                   static_cast<A>(in_.options.scale) * changes_.query_scale(row), how_);
    }
  }

  void store_keys(const Span& span, std::int64_t first, std::int64_t count) {
    const std::int64_t hd = g_.head_dim;
    for (const auto& [to, from] : {std::pair(&out_.dk, dk_), std::pair(&out_.dv, dv_)}) {
      if (!*to) continue;
      for (std::int64_t j = 0; j < count; ++j)
        store_row<T>(*to, span.k_begin + first + j, span.kv_head * hd, from + j * hd, hd, A(1), how_);
    }
  }

  const AttentionGrads& out_;
  const Tensor& d_o_;
  const AttentionResult& result_;
  const AttentionInputs& in_;
  const Geometry& g_;
  Into how_;
  ScoreChanges<A> changes_;
  Tensor scratch_;
  A *q_, *q_t_, *do_, *do_t_, *dq_, *p_, *ds_, *k_, *v_, *dk_, *dv_, *lse_, *delta_, *passed_;
  std::int64_t n_ = 0;  // keys in the current tile
};

/// For each thread, of the rows of K, V, dK and dV that one pass over a whole span holds in the arithmetic
/// type.
constexpr std::int64_t most_span_bytes = std::int64_t{32} << 20;

std::int64_t most_keys(const AttentionInputs& in) {
  std::int64_t most = 0;
  for (const AttentionPair& pair : in.pairs.in_table()) most = std::max(most, pair.keys.size());
  return most;
}

/// Whether one pass of five products over whole spans is faster than two passes of seven over blocks and
/// tiles of keys, which give more items to share and hold one tile of keys only. Both add the same tiles in
/// the same order: same bits.
bool whole_spans(const AttentionInputs& in, const Geometry& g) {
  const std::int64_t row_bytes = g.head_dim * size_of(accumulate_dtype(in.q.dtype()));
  if (4 * most_keys(in) * row_bytes > most_span_bytes) return false;
  const std::int64_t threads = omp_in_parallel() ? 1 : omp_get_max_threads();
  const std::int64_t spans = std::ssize(in.pairs.in_table()) * g.kv_heads;
  return 5 * threads * ((spans + threads - 1) / threads) <= 7 * spans;
}

}  // namespace

void attention_backward(const AttentionGrads& out, const Tensor& d_o, const AttentionResult& result,
                        const AttentionInputs& in, Into how) {
  const Geometry g(in);
  const std::span pairs = in.pairs.in_table();
  const std::int64_t spans = std::ssize(pairs) * g.kv_heads, longest = most_keys(in);
  const auto pair = [&](std::int64_t i) -> const AttentionPair& {
    return pairs[static_cast<std::size_t>(i)];
  };
  visit_float("attention", in.q.dtype(), [&]<class T>(TypeTag<T>) {
    using Pass = Backward<T>;
    if (whole_spans(in, g)) {
      parallel_for(spans, 1, [&](std::int64_t begin, std::int64_t end) {
        Pass pass(out, d_o, result, in, g, longest, how);
        for (std::int64_t i = begin; i < end; ++i) pass.span(Span(in, pair(i / g.kv_heads), i % g.kv_heads));
      });
      return;
    }
    if (out.dq)
      Blocks(in, g).for_each([&] {
        return [pass = Pass(out, d_o, result, in, g, key_tile, how)](
                   const Span& span, const Block& block) mutable { pass.block(span, block); };
      });
    if (!out.dk && !out.dv) return;
    const std::int64_t tiles = (longest + key_tile - 1) / key_tile;
    parallel_for(spans * tiles, 1, [&](std::int64_t begin, std::int64_t end) {
      Pass pass(out, d_o, result, in, g, key_tile, how);
      for (std::int64_t i = begin; i < end; ++i) {
        const Span span(in, pair(i / tiles / g.kv_heads), i / tiles % g.kv_heads);
        // Most queries see the first keys, so tiles are taken from both ends in turn, like the blocks of
        // Blocks.
        const std::int64_t n = (span.k_count + key_tile - 1) / key_tile, t = i % tiles;
        if (t < n) pass.keys(span, key_tile * (t % 2 ? n - 1 - t / 2 : t / 2));
      }
    });
  });
}

}  // namespace nemocube::cpu
