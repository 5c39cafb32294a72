#include "ops/attention/partial_attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "core/profile.h"
#include "core/variants.h"
#include "ops/attention/attention_kernels.h"

namespace nemocube {
namespace {

enum class AttentionVariant { tiled, plain };
const Variants<AttentionVariant> attention_variants("attention", {{AttentionVariant::tiled, "tiled"},
                                                                  {AttentionVariant::plain, "plain"}});

/// An optional tensor of one dimension.
void check_constant(std::string_view what, const Tensor& t, std::int64_t count, DType dtype, Device device) {
  if (!t.defined()) return;
  check_shape(what, t, {count});
  check_dtype(what, t, dtype);
  require(t.device() == device, what, ": want it on ", device, ", got ", t.device());
}

void check_inputs(const AttentionInputs& in) {
  const AttentionOptions& o = in.options;
  require(o.heads >= 1 && o.kv_heads >= 1 && o.heads % o.kv_heads == 0,
          "attention: heads: want a multiple of ", o.kv_heads, " kv heads, got ", o.heads);
  require(o.head_dim >= 1, "attention: head_dim: want at least 1, got ", o.head_dim);
  require(std::isfinite(o.scale) && o.scale >= 0, "attention: scale: want a finite value >= 0, got ",
          o.scale);
  require(o.window >= 0, "attention: window: want at least 0, got ", o.window);
  require(o.window == 0 || o.causal, "attention: window: want causal attention with a window of ", o.window);
  require(o.query_block >= 1, "attention: query_block: want at least 1, got ", o.query_block);
  require(o.query_block == 1 || o.causal, "attention: query_block: want causal attention with blocks of ",
          o.query_block);
  require(std::isfinite(o.softcap) && o.softcap >= 0, "attention: softcap: want a finite value >= 0, got ",
          o.softcap);
  require(in.q.defined() && in.q.ndim() == 2, "attention: q: want 2 dimensions");
  require(in.k.defined() && in.k.ndim() == 2, "attention: k: want 2 dimensions");
  check_shape("attention: q", in.q, {in.q.dim(0), o.heads * o.head_dim});
  check_shape("attention: k", in.k, {in.k.dim(0), o.kv_heads * o.head_dim});
  check_shape("attention: v", in.v, in.k.shape());
  require(is_float(in.q.dtype()), "attention: q: want f32, f64 or bf16, got ", in.q.dtype());
  check_dtype("attention: k", in.k, in.q.dtype());
  check_dtype("attention: v", in.v, in.q.dtype());
  check_constant("attention: slopes", o.slopes, o.heads, DType::f32, in.q.device());
  check_constant("attention: query_scale", o.query_scale, in.q.dim(0), accumulate_dtype(in.q.dtype()),
                 in.q.device());
}

void check_pairs(const AttentionInputs& in) {
  const auto inside = [](const Range& range, const Tensor& rows) {
    return range.begin >= 0 && range.begin <= range.end && range.end <= rows.dim(0);
  };
  for (const AttentionPair& pair : in.pairs.list())
    expect(inside(pair.queries, in.q) && inside(pair.keys, in.k), "attention: queries [", pair.queries.begin,
           ", ", pair.queries.end, ") of ", in.q.dim(0), ", keys [", pair.keys.begin, ", ", pair.keys.end,
           ") of ", in.k.dim(0));
}

}  // namespace

AttentionPairs::AttentionPairs(std::vector<AttentionPair> pairs, Device device) : list_(std::move(pairs)) {
  if (list_.empty()) return;
  at_last_keys_ = std::ranges::all_of(
      list_, [](const AttentionPair& p) { return p.distance == p.keys.size() - p.queries.size(); });
  const Tensor table = Tensor::empty({std::ssize(list_), 5}, DType::i64, Device::cpu);
  for (std::size_t i = 0; i < list_.size(); ++i) {
    const auto& [queries, keys, distance] = list_[i];
    std::ranges::copy(std::array{queries.begin, queries.end, keys.begin, keys.end, distance},
                      table.row<std::int64_t>(static_cast<std::int64_t>(i)));
  }
  table_ = table.to(device);
}

std::span<const AttentionPair> AttentionPairs::in_table() const {
  static_assert(sizeof(AttentionPair) == 5 * sizeof(std::int64_t) &&
                std::is_standard_layout_v<AttentionPair>);
  if (list_.empty()) return {};
  return {reinterpret_cast<const AttentionPair*>(table_.data<std::int64_t>()), list_.size()};
}

void AttentionPairs::refill(const AttentionPairs& made) {
  // What is queued with the table may rely on that.
  expect(at_last_keys_ == made.at_last_keys_, "attention: pairs with other distances");
  list_ = made.list_;
  if (table_) table_.copy_from(made.table_);
}

AttentionInputs attention_inputs(const Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                                 const AttentionOptions& options) {
  AttentionInputs in{q, k, v, options, false, {}};
  check_inputs(in);
  if (options.scale == 0) in.options.scale = 1 / std::sqrt(static_cast<double>(options.head_dim));
  in.plain = attention_variants.chosen(ctx, q.device()) == AttentionVariant::plain;
  return in;
}

void partial_attention(const AttentionResult& out, const AttentionInputs& in, Into how) {
  static Zone zone("attention/forward");
  const ZoneTimer timer(zone);
  check_pairs(in);
  if (in.plain) return attention_plain_forward(out, in, how);
  attention_tiled_forward(out, in, how);
}

void partial_attention_backward(const AttentionGrads& out, const Tensor& d_o, const AttentionResult& whole,
                                const AttentionInputs& in, Into how) {
  static Zone zone("attention/backward");
  const ZoneTimer timer(zone);
  check_pairs(in);
  if (in.plain) return attention_plain_backward(out, d_o, whole, in, how);
  attention_tiled_backward(out, d_o, whole, in, how);
}

}  // namespace nemocube
