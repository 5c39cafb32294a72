#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/parallel_for.h"
#include "ops/attention/attention_kernels.h"
#include "ops/math.h"

/// Parts shared by the tiled forward and backward pass.
///
/// A block is a few consecutive queries with all query heads of one kv head. Each pair of query and head is
/// one column of the block, query by query, head by head. Scores are formed transposed, [keys, columns]:
/// softmax then runs along the vector lanes, the heads of a group share every load of K and V, and the
/// products that form dK and dV sum over the group by themselves. A block reads keys from the first one that
/// its first query sees up to the last one that its last query sees, in tiles that end at multiples of
/// key_tile.
namespace nemocube::cpu::attention {

constexpr std::int64_t block_columns = 128, key_tile = 96, column_multiple = 16;

/// 2^x for x <= 0 (and a little above): |relative error| < 1.5e-7, 0 below -126.5; NaN stays NaN. The
/// coefficients minimise the relative error of a polynomial of degree 6 with p(0) = 1 on [-1/2, 1/2].
inline float exp2_tile(float x) {
  // Adding 1.5 * 2^23 + 127 leaves the exponent field of 2^n in the low mantissa bits, n being x rounded to
  // an integer: the field of the number 0 for n = -127.
  constexpr float round = 12582912.0f + 127.0f;
  const float clamped = x < -127.0f ? -127.0f : x;
  const float shifted = clamped + round;
  const float r = clamped - (shifted - round);
  float p = 1.5594677542e-4f;
  p = p * r + 1.3406643905e-3f;
  p = p * r + 9.6176929749e-3f;
  p = p * r + 5.5503105510e-2f;
  p = p * r + 2.4022652783e-1f;
  p = p * r + 6.9314721497e-1f;
  p = p * r + 1.0f;
  return p * std::bit_cast<float>(std::bit_cast<std::uint32_t>(shifted) << 23);
}
inline double exp2_tile(double x) { return std::exp2(x); }

/// tanh x: |relative error| < 5e-7.
inline float tanh_tile(float x) { return tanh_by(x, exp2_tile(std::abs(x) * -2.8853900818f)); }
inline double tanh_tile(double x) { return std::tanh(x); }

constexpr double log2_e = 1.44269504088896340736, ln_2 = 0.693147180559945309417;

inline std::int64_t pad_columns(std::int64_t columns) {
  return (columns + column_multiple - 1) / column_multiple * column_multiple;
}

/// Sizes that do not depend on the pair.
struct Geometry {
  explicit Geometry(const AttentionInputs& in)
      : head_dim(in.options.head_dim),
        kv_heads(in.options.kv_heads),
        group(in.options.heads / in.options.kv_heads),
        queries(std::max<std::int64_t>(1, block_columns / group)),
        padded_columns(pad_columns(queries * group)) {}
  std::int64_t head_dim, kv_heads, group;
  std::int64_t queries;         ///< in a full block
  std::int64_t padded_columns;  ///< of a full block
};

/// One pair of queries and keys, and one kv head.
struct Span {
  Span(const AttentionInputs& in, const AttentionPair& pair, std::int64_t head)
      : kv_head(head),
        q_begin(pair.queries.begin),
        q_count(pair.queries.size()),
        k_begin(pair.keys.begin),
        k_count(pair.keys.size()),
        distance(pair.distance),
        window(in.options.window),
        query_block(in.options.query_block),
        causal(in.options.causal) {}
  std::int64_t kv_head, q_begin, q_count, k_begin, k_count, distance, window, query_block;
  bool causal;

  /// The key at which local query `q` stands.
  std::int64_t position(std::int64_t q) const { return q / query_block * query_block + distance; }
  /// The first local query that stands at `key` or behind.
  std::int64_t first_query(std::int64_t key) const {
    const std::int64_t q = std::max<std::int64_t>(key - distance, 0);
    return (q + query_block - 1) / query_block * query_block;
  }
  /// Keys that the queries before local row `q_end` see; pre: q_end > 0.
  std::int64_t keys_before(std::int64_t q_end) const {
    return causal ? std::clamp<std::int64_t>(position(q_end - 1) + 1, 0, k_count) : k_count;
  }
  /// The first key that the queries from local row `q` on see.
  std::int64_t first_key(std::int64_t q) const {
    return window > 0 ? std::clamp<std::int64_t>(position(q) - window + 1, 0, k_count) : 0;
  }
};

/// Queries [first, first + count) of a span, counted from its first row.
struct Block {
  Block(const Geometry& g, const Span& span, std::int64_t index)
      : first(index * g.queries),
        count(std::min(g.queries, span.q_count - first)),
        columns(count * g.group),
        padded_columns(pad_columns(columns)),
        key_begin(span.first_key(first)),
        key_end(span.keys_before(first + count)) {}
  std::int64_t first, count, columns, padded_columns;
  std::int64_t key_begin, key_end;  ///< keys seen by any of its queries
};

/// Where the tile of key `k` ends, cut at `key_end`.
inline std::int64_t tile_end(std::int64_t k, std::int64_t key_end) {
  return std::min((k / key_tile + 1) * key_tile, key_end);
}

/// Puts `instead` into the columns of `block` that do not see local key `j`: queries before the key (the
/// first columns), and queries beyond the key's window (the last columns).
template <class A>
void hide(A* columns, const Geometry& g, const Span& span, const Block& block, std::int64_t j, A instead) {
  if (!span.causal) return;
  const auto column_of = [&](std::int64_t query) {
    return std::clamp<std::int64_t>((query - block.first) * g.group, 0, block.columns);
  };
  std::fill_n(columns, column_of(span.first_query(j)), instead);
  if (span.window > 0)
    std::fill(columns + column_of(span.first_query(j + span.window)), columns + block.columns, instead);
}

/// Applies softcap and slopes to scores. Rows of q are multiplied by factor() and their
/// query_scale before the products with keys.
template <class A>
class ScoreChanges {
 public:
  ScoreChanges(const AttentionInputs& in, const Geometry& g)
      : in_(in),
        g_(g),
        cap_(static_cast<A>(in.options.softcap * log2_e)),
        slopes_(in.options.slopes ? static_cast<std::size_t>(g.padded_columns) : 0),
        positions_(slopes_.size()) {}

  /// Of q for products that are scores in powers of two, or S / c with softcap.
  A factor() const {
    return static_cast<A>(capped() ? in_.options.scale / in_.options.softcap : in_.options.scale * log2_e);
  }
  /// From there back to scale q.
  A factor_back() const { return static_cast<A>(capped() ? in_.options.softcap : ln_2); }
  A query_scale(std::int64_t row) const {
    return in_.options.query_scale ? in_.options.query_scale.data<A>()[row] : A(1);
  }
  /// Multiplies the rows of a block (copy_block) by the query_scale.
  void scale_queries(A* rows, const Span& span, const Block& block) const {
    if (!in_.options.query_scale) return;
    const std::int64_t channels = g_.group * g_.head_dim;
    for (std::int64_t i = 0; i < block.count; ++i) {
      const A s = query_scale(span.q_begin + block.first + i);
      for (std::int64_t c = 0; c < channels; ++c) rows[i * channels + c] *= s;
    }
  }

  bool capped() const { return in_.options.softcap > 0; }
  bool any() const { return capped() || !slopes_.empty(); }
  /// The block that tiles belong to from now on.
  void begin(const Span& span, const Block& block) {
    if (slopes_.empty()) return;
    const float* of_heads = in_.options.slopes.template data<float>() + span.kv_head * g_.group;
    for (std::int64_t i = 0; i < block.count; ++i)
      for (std::int64_t h = 0; h < g_.group; ++h) {
        const auto c = static_cast<std::size_t>(i * g_.group + h);
        slopes_[c] = static_cast<A>(of_heads[h]) * static_cast<A>(log2_e);
        positions_[c] = static_cast<A>(span.position(block.first + i));
      }
  }
  /// Turns the products of local key `j` into scores in powers of two; `passed` becomes 1 - tanh^2 where
  /// there is softcap.
  void apply(A* __restrict s, A* __restrict passed, std::int64_t columns, std::int64_t j) const {
    if (capped())
      for (std::int64_t c = 0; c < columns; ++c) {
        const A y = tanh_tile(s[c]);
        passed[c] = 1 - y * y;
        s[c] = y * cap_;
      }
    if (slopes_.empty()) return;
    const A *slope = slopes_.data(), *position = positions_.data(), key = static_cast<A>(j);
    for (std::int64_t c = 0; c < columns; ++c) s[c] -= slope[c] * (position[c] - key);
  }

 private:
  const AttentionInputs& in_;
  const Geometry& g_;
  A cap_;
  std::vector<A> slopes_, positions_;  // of the columns
};

/// All items (pair, kv head, block) of a call. The blocks of a span are taken in turn from its start,
/// where queries see few keys, and from its end, so that any contiguous share of the items is a fair share of
/// the work.
class Blocks {
 public:
  Blocks(const AttentionInputs& in, const Geometry& g)
      : in_(in), pairs_(in.pairs.in_table()), g_(g), start_{0} {
    for (const AttentionPair& pair : pairs_) start_.push_back(start_.back() + blocks_of(pair) * g.kv_heads);
  }
  std::int64_t blocks_of(const AttentionPair& pair) const {
    return (pair.queries.size() + g_.queries - 1) / g_.queries;
  }

  /// Calls make()(span, block) for all items, in parallel, with one result of make() for each thread.
  template <class Make>
  void for_each(Make&& make) const {
    parallel_for(start_.back(), 1, [&](std::int64_t begin, std::int64_t end) {
      auto&& fn = make();
      for (std::int64_t i = begin; i < end; ++i) {
        const auto p = static_cast<std::size_t>(std::ranges::upper_bound(start_, i) - start_.begin()) - 1;
        const AttentionPair& pair = pairs_[p];
        const std::int64_t local = i - start_[p], n = blocks_of(pair), b = local % n;
        const Span span(in_, pair, local / n);
        fn(span, Block(g_, span, b % 2 ? n - 1 - b / 2 : b / 2));
      }
    });
  }

 private:
  const AttentionInputs& in_;
  std::span<const AttentionPair> pairs_;
  const Geometry& g_;
  std::vector<std::int64_t> start_;
};

/// Rows [first, first + count) of one kv head, as a contiguous [count, head_dim] in the arithmetic type.
template <class T, class A>
void copy_keys(A* to, const Tensor& from, const Geometry& g, const Span& span, std::int64_t first,
               std::int64_t count) {
  for (std::int64_t j = 0; j < count; ++j) {
    const T* row = from.row<T>(span.k_begin + first + j) + span.kv_head * g.head_dim;
    for (std::int64_t c = 0; c < g.head_dim; ++c) to[j * g.head_dim + c] = static_cast<A>(row[c]);
  }
}

/// The columns of a block as rows [padded_columns, head_dim], times `factor`; padding is zero.
template <class T, class A>
void copy_block(A* to, const Tensor& from, const Geometry& g, const Span& span, const Block& block,
                A factor) {
  const std::int64_t channels = g.group * g.head_dim;
  for (std::int64_t i = 0; i < block.count; ++i) {
    const T* row = from.row<T>(span.q_begin + block.first + i) + span.kv_head * channels;
    for (std::int64_t c = 0; c < channels; ++c) to[i * channels + c] = static_cast<A>(row[c]) * factor;
  }
  std::fill(to + block.columns * g.head_dim, to + block.padded_columns * g.head_dim, A(0));
}

/// Sets `count` columns of a row of `to`, of T or A, from `column` on to factor `from`, or adds that.
template <class T, class A>
void store_row(const Tensor& to, std::int64_t row, std::int64_t column, const A* from, std::int64_t count,
               A factor, Into how) {
  const auto store = [&]<class Stored>(Stored* at) {
    if (how == Into::set)
      for (std::int64_t c = 0; c < count; ++c) at[c] = static_cast<Stored>(from[c] * factor);
    else
      for (std::int64_t c = 0; c < count; ++c)
        at[c] = static_cast<Stored>(static_cast<A>(at[c]) + from[c] * factor);
  };
  if (to.dtype() == dtype_of<T>())
    store(to.row<T>(row) + column);
  else
    store(to.row<A>(row) + column);
}

}  // namespace nemocube::cpu::attention
