#include "ops/attention/attention_tiles_cpu.h"
#include "ops/tile.h"
#include "ops/transpose.h"

namespace nemocube::cpu {
namespace {

using namespace attention;

template <class T>
class Forward {
  using A = acc_t<T>;
  static constexpr A minus_infinity = -std::numeric_limits<A>::infinity();

 public:
  Forward(const AttentionResult& out, const AttentionInputs& in, const Geometry& g, Into how)
      : out_(out),
        in_(in),
        g_(g),
        how_(how),
        changes_(in, g),
        scratch_(Tensor::empty({scratch_size(g)}, dtype_of<A>(), Device::cpu)) {
    A* at = scratch_.data<A>();
    const auto take = [&at](std::int64_t n) { return std::exchange(at, at + n); };
    const std::int64_t block = g.padded_columns * g.head_dim;
    rows_ = take(block);
    q_t_ = take(block);
    o_t_ = take(block);
    scores_ = take(key_tile * g.padded_columns);
    keys_ = take(key_tile * g.head_dim);
    most_ = take(g.padded_columns);
    total_ = take(g.padded_columns);
    factor_ = take(g.padded_columns);
    shift_ = take(g.padded_columns);
  }

  void operator()(const Span& span, const Block& block) {
    const std::int64_t columns = block.padded_columns, hd = g_.head_dim;
    // In powers of two: e^(scale s) = 2^(scale log2(e) s).
    copy_block<T>(rows_, in_.q, g_, span, block, changes_.factor());
    changes_.scale_queries(rows_, span, block);
    changes_.begin(span, block);
    transpose(q_t_, columns, rows_, hd, columns, hd);
    start(span, block);
    for (std::int64_t k0 = block.key_begin, end; k0 < block.key_end; k0 = end) {
      end = tile_end(k0, block.key_end);
      const std::int64_t n = end - k0;
      copy_keys<T>(keys_, in_.k, g_, span, k0, n);
      tile_gemm<A, false>(n, columns, hd, keys_, hd, q_t_, columns, scores_, columns, false);
      if (changes_.any())
        for (std::int64_t j = 0; j < n; ++j) changes_.apply(scores_ + j * columns, shift_, columns, k0 + j);
      for (std::int64_t j = 0; j < n; ++j)
        hide(scores_ + j * columns, g_, span, block, k0 + j, minus_infinity);
      softmax_tile(columns, n);
      copy_keys<T>(keys_, in_.v, g_, span, k0, n);
      tile_gemm<A, true>(hd, columns, n, keys_, hd, scores_, columns, o_t_, columns, true);
    }
    finish(span, block);
  }

 private:
  static std::int64_t scratch_size(const Geometry& g) {
    return 3 * g.padded_columns * g.head_dim + key_tile * (g.padded_columns + g.head_dim) +
           4 * g.padded_columns;
  }

  /// What has been summed before the first tile of keys. A result over other keys is the sum over one key
  /// with the score lse and the value o.
  void start(const Span& span, const Block& block) {
    const std::int64_t columns = block.padded_columns, hd = g_.head_dim;
    std::fill_n(most_, columns, minus_infinity);
    std::fill_n(total_, columns, A(0));
    if (how_ == Into::set) {
      std::fill_n(o_t_, columns * hd, A(0));
      return;
    }
    if (out_.o.dtype() == dtype_of<T>())
      copy_block<T>(rows_, out_.o, g_, span, block, A(1));
    else
      copy_block<A>(rows_, out_.o, g_, span, block, A(1));
    transpose(o_t_, columns, rows_, hd, columns, hd);
    for (std::int64_t i = 0; i < block.count; ++i)
      for (std::int64_t h = 0; h < g_.group; ++h) {
        const A lse = lse_row(span, block, i)[h];
        most_[i * g_.group + h] = lse * static_cast<A>(log2_e);
        total_[i * g_.group + h] = lse == minus_infinity ? A(0) : A(1);
      }
  }

  A* lse_row(const Span& span, const Block& block, std::int64_t query) const {
    return out_.lse.row<A>(span.q_begin + block.first + query) + span.kv_head * g_.group;
  }

  /// Turns the scores of n keys into weights relative to the largest score so far, and rescales the sums of
  /// earlier keys to the same largest score.
  void softmax_tile(std::int64_t columns, std::int64_t n) {
    A* __restrict most = most_;
    A* __restrict shift = shift_;
    A* __restrict factor = factor_;
    A* __restrict total = total_;
    std::copy_n(most, columns, factor);
    for (std::int64_t j = 0; j < n; ++j) {
      const A* __restrict s = scores_ + j * columns;
      for (std::int64_t c = 0; c < columns; ++c) most[c] = s[c] > most[c] ? s[c] : most[c];
    }
    bool rescale = false;
    for (std::int64_t c = 0; c < columns; ++c) {
      // A column that has seen no key yet has -inf everywhere; 0 stands in, to avoid inf - inf.
      shift[c] = most[c] == minus_infinity ? A(0) : most[c];
      rescale = rescale || factor[c] != most[c];
      factor[c] = exp2_tile(factor[c] - shift[c]);
      total[c] *= factor[c];
    }
    for (std::int64_t j = 0; j < n; ++j) {
      A* __restrict p = scores_ + j * columns;
      for (std::int64_t c = 0; c < columns; ++c) {
        p[c] = exp2_tile(p[c] - shift[c]);
        total[c] += p[c];
      }
    }
    if (rescale) scale_columns(columns);
  }

  void scale_columns(std::int64_t columns) {
    const A* __restrict factor = factor_;
    for (std::int64_t d = 0; d < g_.head_dim; ++d) {
      A* __restrict o = o_t_ + d * columns;
      for (std::int64_t c = 0; c < columns; ++c) o[c] *= factor[c];
    }
  }

  void finish(const Span& span, const Block& block) {
    const std::int64_t columns = block.padded_columns, hd = g_.head_dim;
    for (std::int64_t c = 0; c < columns; ++c) factor_[c] = total_[c] == A(0) ? A(0) : A(1) / total_[c];
    scale_columns(columns);
    transpose(rows_, hd, o_t_, columns, hd, columns);
    const std::int64_t channels = g_.group * hd;
    for (std::int64_t i = 0; i < block.count; ++i) {
      store_row<T>(out_.o, span.q_begin + block.first + i, span.kv_head * channels, rows_ + i * channels,
                   channels, A(1), Into::set);
      A* lse = lse_row(span, block, i);
      for (std::int64_t h = 0; h < g_.group; ++h) {
        const std::int64_t c = i * g_.group + h;
        lse[h] = static_cast<A>(ln_2) * (most_[c] + std::log2(total_[c]));
      }
    }
  }

  const AttentionResult& out_;
  const AttentionInputs& in_;
  const Geometry& g_;
  Into how_;
  ScoreChanges<A> changes_;
  Tensor scratch_;
  A *rows_, *q_t_, *o_t_, *scores_, *keys_, *most_, *total_, *factor_, *shift_;
};

}  // namespace

void attention_forward(const AttentionResult& out, const AttentionInputs& in, Into how) {
  const Geometry g(in);
  visit_float("attention", in.q.dtype(), [&]<class T>(TypeTag<T>) {
    Blocks(in, g).for_each([&] { return Forward<T>(out, in, g, how); });
  });
}

}  // namespace nemocube::cpu
