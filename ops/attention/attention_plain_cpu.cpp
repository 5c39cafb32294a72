#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/parallel_for.h"
#include "ops/attention/attention_tiles_cpu.h"

namespace nemocube::cpu {
namespace {

using attention::store_row;

/// Straight loops, one query at a time.
template <class T>
struct Plain {
  using A = acc_t<T>;
  const AttentionInputs& in;
  Into how;
  const AttentionOptions& options = in.options;
  std::int64_t hd = options.head_dim, group = options.heads / options.kv_heads;

  A load(const Tensor& t, std::int64_t row, std::int64_t column) const {
    if (t.dtype() == dtype_of<T>()) return static_cast<A>(t.row<T>(row)[column]);
    return t.row<A>(row)[column];
  }

  A dot(const T* a, const T* b) const {
    A sum = 0;
    for (std::int64_t c = 0; c < hd; ++c) sum += static_cast<A>(a[c]) * static_cast<A>(b[c]);
    return sum;
  }

  /// The key row where query row `i` of the pair stands: less than that of the first key, or more than that
  /// of the last one, where it stands at none.
  std::int64_t own_key(const AttentionPair& pair, std::int64_t i) const {
    const std::int64_t q = (i - pair.queries.begin) / options.query_block * options.query_block;
    return pair.keys.begin + q + pair.distance;
  }
  /// The key rows that query row `i` of the pair sees.
  Range keys_of(const AttentionPair& pair, std::int64_t i) const {
    if (!options.causal) return pair.keys;
    const auto inside = [&](std::int64_t j) { return std::clamp(j, pair.keys.begin, pair.keys.end); };
    const std::int64_t end = own_key(pair, i) + 1;
    return {options.window > 0 ? inside(end - options.window) : pair.keys.begin, inside(end)};
  }

  A query_scale(std::int64_t i) const {
    return options.query_scale ? options.query_scale.data<A>()[i] : A(1);
  }
  /// A score from scale q . k: of query row i, which stands at key row `own`, in head h, and key row j.
  /// `passed`: the derivative of softcap.
  A changed(A s, std::int64_t i, std::int64_t h, std::int64_t own, std::int64_t j, A& passed) const {
    s *= query_scale(i);
    if (options.softcap > 0) {
      const A cap = static_cast<A>(options.softcap), y = std::tanh(s / cap);
      passed = 1 - y * y;
      s = cap * y;
    }
    if (options.slopes) s -= static_cast<A>(options.slopes.data<float>()[h]) * static_cast<A>(own - j);
    return s;
  }
  bool changes() const { return options.softcap > 0 || options.slopes || options.query_scale; }

  /// Calls fn(pair, kv head) for all, in parallel.
  template <class Fn>
  void for_heads(Fn&& fn) const {
    const std::int64_t n = options.kv_heads;
    const std::span pairs = in.pairs.in_table();
    parallel_for(std::ssize(pairs) * n, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) fn(pairs[static_cast<std::size_t>(i / n)], i % n);
    });
  }

  void forward(const AttentionResult& out) const {
    for_heads([&](const AttentionPair& pair, std::int64_t kv_head) {
      std::vector<A> p, sum(static_cast<std::size_t>(hd));
      for (std::int64_t i = pair.queries.begin; i < pair.queries.end; ++i)
        for (std::int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
          const auto [first, last] = keys_of(pair, i);
          A& lse = out.lse.row<A>(i)[h];
          const bool more = how == Into::add && lse != -std::numeric_limits<A>::infinity();
          A most = more ? lse : -std::numeric_limits<A>::infinity();
          p.clear();
          for (std::int64_t j = first; j < last; ++j) {
            p.push_back(static_cast<A>(options.scale) *
                        dot(in.q.row<T>(i) + h * hd, in.k.row<T>(j) + kv_head * hd));
            if (A passed; changes()) p.back() = changed(p.back(), i, h, own_key(pair, i), j, passed);
            most = std::max(most, p.back());
          }
          // A result over other keys is the sum over one key with the score lse and the value o.
          A total = more ? std::exp(lse - most) : A(0);
          for (std::int64_t c = 0; c < hd; ++c)
            sum[static_cast<std::size_t>(c)] = more ? total * load(out.o, i, h * hd + c) : A(0);
          for (std::int64_t j = first; j < last; ++j) {
            const A e = std::exp(p[static_cast<std::size_t>(j - first)] - most);
            const T* v = in.v.row<T>(j) + kv_head * hd;
            total += e;
            for (std::int64_t c = 0; c < hd; ++c)
              sum[static_cast<std::size_t>(c)] += e * static_cast<A>(v[c]);
          }
          if (total != A(0))
            for (A& x : sum) x /= total;
          store_row<T>(out.o, i, h * hd, sum.data(), hd, A(1), Into::set);
          lse = most + std::log(total);  // no keys: -inf + -inf
        }
    });
  }

  void backward(const AttentionGrads& out, const Tensor& d_o, const AttentionResult& result) const {
    const auto size = [this](std::int64_t rows) { return static_cast<std::size_t>(rows * hd); };
    const A scale = static_cast<A>(options.scale);
    for_heads([&](const AttentionPair& pair, std::int64_t kv_head) {
      const std::int64_t k0 = pair.keys.begin, nk = pair.keys.size();
      std::vector<A> dk(size(nk)), dv(size(nk)), dq(size(1));
      for (std::int64_t i = pair.queries.begin; i < pair.queries.end; ++i)
        for (std::int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
          const T *q = in.q.row<T>(i) + h * hd, *g = d_o.row<T>(i) + h * hd;
          const A delta = dot(g, result.o.row<T>(i) + h * hd), lse = result.lse.row<A>(i)[h];
          std::ranges::fill(dq, A(0));
          const auto [first, last] = keys_of(pair, i);
          for (std::int64_t j = first; j < last; ++j) {
            const T *k = in.k.row<T>(j) + kv_head * hd, *v = in.v.row<T>(j) + kv_head * hd;
            A p, ds;
            if (A passed = 1; changes()) {
              p = std::exp(changed(scale * dot(q, k), i, h, own_key(pair, i), j, passed) - lse);
              ds = scale * query_scale(i) * passed * p * (dot(g, v) - delta);
            } else {
              p = std::exp(scale * dot(q, k) - lse);
              ds = scale * p * (dot(g, v) - delta);
            }
            A *dk_row = dk.data() + (j - k0) * hd, *dv_row = dv.data() + (j - k0) * hd;
            for (std::int64_t c = 0; c < hd; ++c) {
              dq[static_cast<std::size_t>(c)] += ds * static_cast<A>(k[c]);
              dk_row[c] += ds * static_cast<A>(q[c]);
              dv_row[c] += p * static_cast<A>(g[c]);
            }
          }
          if (out.dq) store_row<T>(out.dq, i, h * hd, dq.data(), hd, A(1), how);
        }
      const auto store = [&](const Tensor& to, const std::vector<A>& from) {
        if (!to) return;
        for (std::int64_t j = 0; j < nk; ++j)
          store_row<T>(to, k0 + j, kv_head * hd, from.data() + j * hd, hd, A(1), how);
      };
      store(out.dk, dk);
      store(out.dv, dv);
    });
  }
};

}  // namespace

void attention_plain_forward(const AttentionResult& out, const AttentionInputs& in, Into how) {
  visit_float("attention", in.q.dtype(), [&]<class T>(TypeTag<T>) { Plain<T>{in, how}.forward(out); });
}

void attention_plain_backward(const AttentionGrads& out, const Tensor& d_o, const AttentionResult& result,
                              const AttentionInputs& in, Into how) {
  visit_float("attention", in.q.dtype(), [&]<class T>(TypeTag<T>) {
    Plain<T>{in, how}.backward(out, d_o, result);
  });
}

}  // namespace nemocube::cpu
