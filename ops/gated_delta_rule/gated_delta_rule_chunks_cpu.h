#pragma once
#include <algorithm>
#include <cmath>

#include "core/parallel_for.h"
#include "ops/gated_delta_rule/gated_delta_rule_kernels.h"
#include "ops/math.h"
#include "ops/tile_matrix.h"
#include "ops/transpose.h"

/// Parts shared by the CPU variants of the rule. A kernel works on one sequence and one key head at a time,
/// chunk by chunk, for the value heads that read this key head.
namespace nemocube::cpu::delta_rule {

using namespace tiles;

struct Sizes {
  std::int64_t value_heads, key_dim, value_dim;
  std::int64_t own_heads;            // value heads of one key head
  std::int64_t chunk, padded_chunk;  // tokens of a whole chunk

  explicit Sizes(const DeltaRuleProblem& p)
      : value_heads(p.options.value_heads),
        key_dim(p.options.key_dim),
        value_dim(p.options.value_dim),
        own_heads(value_heads / p.options.key_heads),
        chunk(p.chunks.length),
        padded_chunk(padded(chunk)) {}
  std::int64_t state() const { return key_dim * value_dim; }
};

/// The tokens [t0, t0 + n) of one chunk, and the key head that is worked on.
struct ChunkPart {
  std::int64_t key_head = 0;
  std::int64_t index = 0;  // of the chunk, among the chunks of all sequences
  std::int64_t t0 = 0, n = 0;
};

/// The states of a key head's value heads one below the other, at `index` of a tensor [.., value_heads,
/// key_dim, value_dim].
template <class A>
Matrix<A> states_of(const Tensor& states, std::int64_t index, std::int64_t key_head, const Sizes& z) {
  const std::int64_t head = index * z.value_heads + key_head * z.own_heads;
  return {states.data<A>() + head * z.state(), z.own_heads * z.key_dim, z.value_dim, z.value_dim};
}
/// The state of one of these heads.
template <class A>
Matrix<A> state_of(const Matrix<A>& states, std::int64_t h, const Sizes& z) {
  return states.row_range(h * z.key_dim, (h + 1) * z.key_dim);
}

/// to += factor * from
template <class A>
void add_scaled(A* __restrict to, A factor, const A* __restrict from, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
}
template <class A>
void set_scaled(A* __restrict to, A factor, const A* __restrict from, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = factor * from[i];
}

/// The normalised rows of q or k of a chunk, and the step of backward through the normalisation.
template <class T>
struct UnitRows {
  using A = acc_t<T>;
  Matrix<A> rows;      // [n, key_dim]: scale x / sqrt(sum x^2 + eps)
  Matrix<A> inverses;  // [1, n]: 1 / sqrt(sum x^2 + eps)
  A scale = 1;

  void set(const Tensor& from, const ChunkPart& at) const {
    load<T>(rows, from, at.t0, at.key_head * rows.cols);
    for (std::int64_t l = 0; l < at.n; ++l) {
      A* const x = rows.row(l);
      const A inverse = A(1) / std::sqrt(dot(x, x, rows.cols) + static_cast<A>(delta_rule_eps));
      inverses.data[l] = inverse;
      for (std::int64_t c = 0; c < rows.cols; ++c) x[c] *= inverse * scale;
    }
  }
  /// Turns the gradient of `rows` into that of the input and writes it.
  void write_gradient(const Matrix<A>& gradient, const Tensor& to, const ChunkPart& at) const {
    for (std::int64_t l = 0; l < at.n; ++l) {
      const A* __restrict y = rows.row(l);
      A* __restrict g = gradient.row(l);
      const A along = dot(y, g, rows.cols) / scale, inverse = inverses.data[l];
      for (std::int64_t c = 0; c < rows.cols; ++c) g[c] = inverse * (scale * g[c] - along * y[c]);
    }
    store<T>(gradient, to, at.t0, at.key_head * rows.cols);
  }
};

/// What the tokens of a chunk have in one value head, a value for each token l. g_l is the logarithm of the
/// decay of the state between the tokens l - 1 and l.
template <class A>
struct HeadTokens {
  A* a;  // with dt_bias
  A* b;
  A* dt;           // softplus of a
  A* beta;         // sigmoid of b
  A* cumsum;       // g_0 + .. + g_l, formed in f64
  A* cumsum_rest;  // the rounding error of cumsum; keeps differences accurate when steps differ widely
  A* from_start;   // e^(g_0 + .. + g_l): factor on the state at the start of the chunk, at token l
  A* to_end;       // e^(g_(l+1) + .. + g_(n-1)): factor on token l's part of the state at the end
  A whole;         // decay over the chunk
  A rate;          // -exp(A_log)
};

/// Those of the value heads of one key head, and the step of backward to a, b and the parameters.
template <class T>
class ChunkTokens {
 public:
  using A = acc_t<T>;

  ChunkTokens(const DeltaRuleProblem& p, const Sizes& z)
      : p_(p),
        heads_(z.own_heads),
        memory_({{a_, heads_, z.padded_chunk},
                 {b_, heads_, z.padded_chunk},
                 {dt_, heads_, z.padded_chunk},
                 {beta_, heads_, z.padded_chunk},
                 {cumsum_, heads_, z.padded_chunk},
                 {cumsum_rest_, heads_, z.padded_chunk},
                 {from_start_, heads_, z.padded_chunk},
                 {to_end_, heads_, z.padded_chunk},
                 {whole_, 1, heads_},
                 {rate_, 1, heads_},
                 {numbers_, 1, z.padded_chunk}}) {
    for (std::int64_t l = 0; l < z.padded_chunk; ++l) numbers_.data[l] = static_cast<A>(l);
  }

  void compute(const ChunkPart& at) {
    for (std::int64_t h = 0; h < heads_; ++h) {
      const std::int64_t head = at.key_head * heads_ + h;
      rate_.data[h] = -std::exp(p_.A_log.template data<A>()[head]);
      const HeadTokens<A> t = this->head(h);
      const A bias = p_.dt_bias.template data<A>()[head];
      read(t.a, p_.a, at, head);
      read(t.b, p_.b, at, head);
      for (std::int64_t l = 0; l < at.n; ++l) {
        t.a[l] += bias;
        t.dt[l] = softplus(t.a[l]);
        t.beta[l] = sigmoid(t.b[l]);
      }
      decays(t, at.n);
      whole_.data[h] = t.from_start[at.n - 1];
    }
  }

  HeadTokens<A> head(std::int64_t h) const {
    return {a_.row(h),           b_.row(h),          dt_.row(h),     beta_.row(h),   cumsum_.row(h),
            cumsum_rest_.row(h), from_start_.row(h), to_end_.row(h), whole_.data[h], rate_.data[h]};
  }

  /// The token numbers 0, 1, 2, ... as values in memory. The compiler turns a loop that compares two of these
  /// values into vector instructions with masks. It would split a loop that compares loop counters.
  const A* numbers() const { return numbers_.data; }

  /// For value head h of the key head, from the gradients of g and beta. Overwrites both.
  void write_gradients(const DeltaRuleGradients& to, const ChunkPart& at, std::int64_t h, A* __restrict dg,
                       A* __restrict dbeta) const {
    const HeadTokens<A> t = head(h);
    const std::int64_t head = at.key_head * heads_ + h;
    A decay = 0, bias = 0;
    for (std::int64_t l = 0; l < at.n; ++l) {
      decay += dg[l] * t.dt[l];
      dg[l] *= t.rate * softplus_grad(t.a[l]);
      bias += dg[l];
      // 1 - beta would lose the digits of a beta near 1.
      dbeta[l] *= t.beta[l] * sigmoid(-t.b[l]);
    }
    T* da = to.a.row<T>(at.t0) + head;
    T* db = to.b.row<T>(at.t0) + head;
    for (std::int64_t l = 0; l < at.n; ++l) {
      da[l * to.a.row_stride()] = static_cast<T>(dg[l]);
      db[l * to.b.row_stride()] = static_cast<T>(dbeta[l]);
    }
    to.A_log.row<A>(at.index)[head] = t.rate * decay;
    to.dt_bias.row<A>(at.index)[head] = bias;
  }

 private:
  static void read(A* to, const Tensor& from, const ChunkPart& at, std::int64_t head) {
    const T* values = from.row<T>(at.t0) + head;
    for (std::int64_t l = 0; l < at.n; ++l) to[l] = static_cast<A>(values[l * from.row_stride()]);
  }

  void decays(const HeadTokens<A>& t, std::int64_t n) const {
    double total = 0;
    for (std::int64_t l = 0; l < n; ++l) {
      total += static_cast<double>(t.dt[l]) * static_cast<double>(t.rate);
      t.cumsum[l] = static_cast<A>(total);
      t.cumsum_rest[l] = static_cast<A>(total - static_cast<double>(t.cumsum[l]));
    }
    const A end = t.cumsum[n - 1], end_rest = t.cumsum_rest[n - 1];
    for (std::int64_t l = 0; l < n; ++l) {
      t.from_start[l] = vec_exp(t.cumsum[l]);
      t.to_end[l] = vec_exp((end - t.cumsum[l]) + (end_rest - t.cumsum_rest[l]));
    }
    for (std::int64_t l = n; l < cumsum_.cols; ++l) t.cumsum[l] = t.cumsum_rest[l] = A(0);
  }

  const DeltaRuleProblem& p_;
  std::int64_t heads_;
  Matrix<A> a_, b_, dt_, beta_, cumsum_, cumsum_rest_, from_start_,
      to_end_;              // [heads, padded chunk], see HeadTokens
  Matrix<A> whole_, rate_;  // [1, heads]
  Matrix<A> numbers_;       // [1, padded chunk]
  Workspace<A> memory_;
};

/// What a chunk has before its gradients: the rows of q and k, the products between its tokens, and for one
/// value head at a time decays, triangles and the solution U of its triangular system
/// (docs/gated_delta_rule.md, "Chunks").
template <class T>
class ChunkProducts {
 public:
  using A = acc_t<T>;

  ChunkProducts(const DeltaRuleProblem& p, const Sizes& z)
      : tokens(p, z),
        p_(p),
        z_(z),
        memory_({{Q.rows, z.padded_chunk, z.key_dim},
                 {K.rows, z.padded_chunk, z.key_dim},
                 {Q.inverses, 1, z.padded_chunk},
                 {K.inverses, 1, z.padded_chunk},
                 {K_transposed_, z.key_dim, z.padded_chunk},
                 {QK, z.padded_chunk, z.padded_chunk},
                 {KK, z.padded_chunk, z.padded_chunk},
                 {D, z.padded_chunk, z.padded_chunk},
                 {P, z.padded_chunk, z.padded_chunk},
                 {minus_A, z.padded_chunk, z.padded_chunk},
                 {B, z.padded_chunk, z.value_dim},
                 {E, z.padded_chunk, z.value_dim},
                 {U, z.padded_chunk, z.value_dim}}) {
    Q.scale = A(1) / std::sqrt(static_cast<A>(z.key_dim));
  }

  void set_chunk(const ChunkPart& to) {
    at = to;
    for (Matrix<A>* m : {&Q.rows, &K.rows, &B, &E, &U}) m->rows = at.n;
    tokens.compute(at);
    Q.set(p_.q, at);
    K.set(p_.k, at);
    const Matrix<A>& k = K.rows;
    transpose(K_transposed_.data, K_transposed_.stride, k.data, k.stride, k.rows, k.cols);
    for_row_blocks(at.n, [&](std::int64_t r0, std::int64_t r1) {
      multiply(Into::set, QK.part(r0, r1, 0, r1), Q.rows.row_range(r0, r1), K_transposed_.col_range(0, r1));
      multiply(Into::set, KK.part(r0, r1, 0, r1), k.row_range(r0, r1), K_transposed_.col_range(0, r1));
    });
  }

  /// `state`: at the start of the chunk; null: zeros.
  void set_head(std::int64_t h, const Matrix<A>* state) {
    const HeadTokens<A> t = tokens.head(h);
    for_row_blocks(at.n, [&](std::int64_t r0, std::int64_t r1) {
      for (std::int64_t l = r0; l < r1; ++l) set_triangles(t, l, padded(r1));
    });
    load<T>(E, p_.v, at.t0, channel(h));
    if (state) multiply(Into::set, B, K.rows, *state);
    for (std::int64_t l = 0; l < at.n; ++l) {
      if (state) add_scaled(E.row(l), -t.from_start[l], B.row(l), z_.value_dim);
      set_scaled(U.row(l), t.beta[l], E.row(l), z_.value_dim);
    }
    solve(U);
  }

  /// X = (I + A)^-1 X
  void solve(const Matrix<A>& X) const {
    for_row_blocks(at.n, [&](std::int64_t r0, std::int64_t r1) {
      if (r0 > 0) multiply(Into::add, X.row_range(r0, r1), minus_A.part(r0, r1, 0, r0), X.row_range(0, r0));
      for (std::int64_t i = r0 + 1; i < r1; ++i)
        for (std::int64_t j = r0; j < i; ++j) add_scaled(X.row(i), minus_A.row(i)[j], X.row(j), X.cols);
    });
  }
  /// X = (I + A)^-T X
  void solve_transposed(const Matrix<A>& X) const {
    const std::int64_t n = at.n;
    for (std::int64_t r0 = (n - 1) / triangle_rows * triangle_rows; r0 >= 0; r0 -= triangle_rows) {
      const std::int64_t r1 = std::min(n, r0 + triangle_rows);
      if (r1 < n)
        add_transposed_product(X.row_range(r0, r1), minus_A.part(r1, n, r0, r1), X.row_range(r1, n));
      for (std::int64_t j = r1 - 2; j >= r0; --j)
        for (std::int64_t i = j + 1; i < r1; ++i) add_scaled(X.row(j), minus_A.row(i)[j], X.row(i), X.cols);
    }
  }

  /// The first column of value head h of the key head.
  std::int64_t channel(std::int64_t h) const { return (at.key_head * z_.own_heads + h) * z_.value_dim; }

  ChunkPart at;
  ChunkTokens<T> tokens;
  UnitRows<T> Q, K;
  Matrix<A> QK, KK;   // [n, n], on and below the diagonal
  Matrix<A> D;        // decays between tokens [n, n], zeros above the diagonal
  Matrix<A> P;        // QK * D
  Matrix<A> minus_A;  // -beta KK * D, zeros on and above the diagonal
  Matrix<A> B;        // K S [n, value_dim], undefined for a state of zeros
  Matrix<A> E;        // V - from_start B
  Matrix<A> U;        // (I + A)^-1 beta E

 private:
  /// Row l of D, P and minus_A. Columns right of the diagonal that are read later are set to zero.
  void set_triangles(const HeadTokens<A>& t, std::int64_t l, std::int64_t columns) const {
    const A* __restrict cumsum = t.cumsum;
    const A* __restrict rest = t.cumsum_rest;
    const A* __restrict number = tokens.numbers();
    const A* __restrict qk = QK.row(l);
    const A* __restrict kk = KK.row(l);
    A* __restrict d = D.row(l);
    A* __restrict p = P.row(l);
    A* __restrict a = minus_A.row(l);
    const A here = cumsum[l], here_rest = rest[l], here_number = number[l], minus_beta = -t.beta[l];
    for (std::int64_t s = 0; s < columns; ++s) {
      const A span = (here - cumsum[s]) + (here_rest - rest[s]);
      const A decay = vec_exp(span > 0 ? A(0) : span);  // right of the diagonal e^span may overflow
      d[s] = number[s] <= here_number ? decay : A(0);
      p[s] = number[s] <= here_number ? qk[s] * decay : A(0);
      a[s] = number[s] < here_number ? minus_beta * kk[s] * decay : A(0);
    }
  }

  const DeltaRuleProblem& p_;
  const Sizes& z_;
  Matrix<A> K_transposed_;
  Workspace<A> memory_;
};

/// Runs kernel(sequence, key head) for every sequence and key head, in parallel. make(TypeTag<T>{}), T the
/// type of v, makes a kernel for each thread. Consecutive items share a key head, so that threads get similar
/// shares of work when sequences differ in length.
template <class Make>
void run_kernels(const DeltaRuleProblem& p, Make&& make) {
  visit_float("gated_delta_rule", p.v.dtype(), [&](auto tag) {
    const std::int64_t count = p.sequences.count();
    parallel_for(count * p.options.key_heads, 1, [&](std::int64_t begin, std::int64_t end) {
      auto kernel = make(tag);
      for (std::int64_t i = begin; i < end; ++i) kernel(i % count, i / count);
    });
  });
}

}  // namespace nemocube::cpu::delta_rule
