#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/parallel_for.h"
#include "ops/attention/attention_kernels.h"

namespace nemocube::cpu {
namespace {

/// Straight loops, one query at a time.
template <class T>
struct Plain {
  using A = acc_t<T>;
  const AttentionInputs& in;
  const AttentionOptions& options = in.options;
  std::int64_t hd = options.head_dim, group = options.heads / options.kv_heads;

  A dot(const T* a, const T* b) const {
    A sum = 0;
    for (std::int64_t c = 0; c < hd; ++c) sum += static_cast<A>(a[c]) * static_cast<A>(b[c]);
    return sum;
  }

  /// First and one past the last key row that query row `i` of sequence `s` sees.
  std::pair<std::int64_t, std::int64_t> keys(std::int64_t s, std::int64_t i) const {
    const std::int64_t first = in.kv_seqs.begin(s), count = in.kv_seqs.length(s);
    if (!options.causal) return {first, first + count};
    const std::int64_t seen = i - in.q_seqs.begin(s) + 1 + count - in.q_seqs.length(s);
    return {first, first + std::clamp<std::int64_t>(seen, 0, count)};
  }

  /// Calls fn(sequence, kv head) for all, in parallel.
  template <class Fn>
  void for_heads(Fn&& fn) const {
    const std::int64_t n = options.kv_heads;
    parallel_for(in.q_seqs.count() * n, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) fn(i / n, i % n);
    });
  }

  void forward(const AttentionResult& out) const {
    for_heads([&](std::int64_t s, std::int64_t kv_head) {
      std::vector<A> p, sum(static_cast<std::size_t>(hd));
      for (std::int64_t i = in.q_seqs.begin(s); i < in.q_seqs.end(s); ++i)
        for (std::int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
          const auto [first, last] = keys(s, i);
          A most = -std::numeric_limits<A>::infinity(), total = 0;
          p.clear();
          for (std::int64_t j = first; j < last; ++j) {
            p.push_back(static_cast<A>(options.scale) *
                        dot(in.q.row<T>(i) + h * hd, in.k.row<T>(j) + kv_head * hd));
            most = std::max(most, p.back());
          }
          std::ranges::fill(sum, A(0));
          for (std::int64_t j = first; j < last; ++j) {
            const A e = std::exp(p[static_cast<std::size_t>(j - first)] - most);
            const T* v = in.v.row<T>(j) + kv_head * hd;
            total += e;
            for (std::int64_t c = 0; c < hd; ++c)
              sum[static_cast<std::size_t>(c)] += e * static_cast<A>(v[c]);
          }
          T* o = out.o.row<T>(i) + h * hd;
          for (std::int64_t c = 0; c < hd; ++c)
            o[c] = static_cast<T>(first == last ? A(0) : sum[static_cast<std::size_t>(c)] / total);
          out.lse.row<A>(i)[h] = most + std::log(total);  // no keys: -inf + -inf
        }
    });
  }

  void backward(const AttentionGrads& out, const Tensor& d_o, const AttentionResult& result) const {
    const auto size = [this](std::int64_t rows) { return static_cast<std::size_t>(rows * hd); };
    const A scale = static_cast<A>(options.scale);
    for_heads([&](std::int64_t s, std::int64_t kv_head) {
      const std::int64_t k0 = in.kv_seqs.begin(s), nk = in.kv_seqs.length(s);
      std::vector<A> dk(size(nk)), dv(size(nk)), dq(size(1));
      for (std::int64_t i = in.q_seqs.begin(s); i < in.q_seqs.end(s); ++i)
        for (std::int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
          const auto [first, last] = keys(s, i);
          const T *q = in.q.row<T>(i) + h * hd, *g = d_o.row<T>(i) + h * hd;
          const A delta = dot(g, result.o.row<T>(i) + h * hd), lse = result.lse.row<A>(i)[h];
          std::ranges::fill(dq, A(0));
          for (std::int64_t j = first; j < last; ++j) {
            const T *k = in.k.row<T>(j) + kv_head * hd, *v = in.v.row<T>(j) + kv_head * hd;
            const A p = std::exp(scale * dot(q, k) - lse), ds = scale * p * (dot(g, v) - delta);
            A *dk_row = dk.data() + (j - k0) * hd, *dv_row = dv.data() + (j - k0) * hd;
            for (std::int64_t c = 0; c < hd; ++c) {
              dq[static_cast<std::size_t>(c)] += ds * static_cast<A>(k[c]);
              dk_row[c] += ds * static_cast<A>(q[c]);
              dv_row[c] += p * static_cast<A>(g[c]);
            }
          }
          if (out.dq)
            std::ranges::transform(dq, out.dq.row<T>(i) + h * hd, [](A x) { return static_cast<T>(x); });
        }
      const auto store = [&](const Tensor& to, const std::vector<A>& from) {
        if (!to) return;
        for (std::int64_t j = 0; j < nk; ++j)
          for (std::int64_t c = 0; c < hd; ++c)
            to.row<T>(k0 + j)[kv_head * hd + c] = static_cast<T>(from[static_cast<std::size_t>(j * hd + c)]);
      };
      store(out.dk, dk);
      store(out.dv, dv);
    });
  }
};

}  // namespace

void attention_plain_forward(const AttentionResult& out, const AttentionInputs& in) {
  visit_float("attention", in.q.dtype(), [&]<class T>(TypeTag<T>) { Plain<T>{in}.forward(out); });
}

void attention_plain_backward(const AttentionGrads& out, const Tensor& d_o, const AttentionResult& result,
                              const AttentionInputs& in) {
  visit_float("attention", in.q.dtype(),
              [&]<class T>(TypeTag<T>) { Plain<T>{in}.backward(out, d_o, result); });
}

}  // namespace nemocube::cpu
