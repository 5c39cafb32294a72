#include <algorithm>
#include <utility>

#include "ops/gated_delta_rule/gated_delta_rule_chunks_cpu.h"

/// Backward of one chunk, for the value heads of one key head, last chunk first. R is the gradient of the
/// state at the end of the chunk, S the state at its start (docs/gated_delta_rule.md, "Backward"):
///   Z  = (I + A)^-T (P^T dO + to_end K R)           dV = beta Z
///   G  = (dO U^T) * D,  X = -beta (Z U^T) * D       on and below, and strictly below the diagonal
///   dQ = from_start dO S^T + G K
///   dK = G^T Q + (X + X^T) K - beta from_start Z S^T + to_end U R^T
///   R' = whole R + Q^T (from_start dO) - K^T (beta from_start Z)      R of the previous chunk
/// dQ and dK are summed over value heads. The gradient dg_t of the log-decay g_t is the sum of every product
/// that crosses from a token before t to a token at or after t. Each product is added directly; no large sums
/// are subtracted from each other.
namespace nemocube::cpu {
namespace {

using namespace delta_rule;

template <class T>
class ChunkedBackward {
 public:
  using A = acc_t<T>;

  ChunkedBackward(const DeltaRuleProblem& p, const DeltaRuleGradients& g, const Tensor& d_o,
                  const Tensor& starts)
      : p_(p),
        g_(g),
        d_o_(d_o),
        starts_(starts),
        z_(p),
        c_(p, z_),
        memory_({{dQ_, z_.padded_chunk, z_.key_dim},
                 {dK_, z_.padded_chunk, z_.key_dim},
                 {dO_, z_.padded_chunk, z_.value_dim},
                 {Z_, z_.padded_chunk, z_.value_dim},
                 {work_, z_.padded_chunk, z_.value_dim},
                 {scores_, z_.padded_chunk, z_.padded_chunk},
                 {solved_scores_, z_.padded_chunk, z_.padded_chunk},
                 {G_, z_.padded_chunk, z_.padded_chunk},
                 {X_, z_.padded_chunk, z_.padded_chunk},
                 {U_transposed_, z_.value_dim, z_.padded_chunk},
                 {state_transposed_, z_.value_dim, z_.key_dim},
                 {R_, z_.own_heads * z_.key_dim, z_.value_dim},
                 {below_, 1, z_.padded_chunk},
                 {dg_, 1, z_.padded_chunk},
                 {dbeta_, 1, z_.padded_chunk},
                 {through_start_, 1, z_.padded_chunk},
                 {through_end_, 1, z_.padded_chunk}}) {}

  void operator()(std::int64_t sequence, std::int64_t key_head) {
    const std::int64_t begin = p_.sequences.begin(sequence), end = p_.sequences.end(sequence);
    const std::int64_t first = p_.chunks.first_of(sequence), count = p_.chunks.count_of(sequence);
    R_.zero();
    for (std::int64_t i = count - 1; i >= 0; --i) {
      const std::int64_t t0 = begin + i * z_.chunk;
      c_.set_chunk({key_head, first + i, t0, std::min(z_.chunk, end - t0)});
      for (Matrix<A>* m : {&dQ_, &dK_, &dO_, &Z_, &work_, &G_, &X_}) m->rows = c_.at.n;
      has_start_ = i > 0 || p_.initial_state.defined();
      has_end_ = i + 1 < count;
      pass_on_ = i > 0;
      const Matrix<A> starts = states_of<A>(starts_, first + i, key_head, z_);
      for (Matrix<A>* m : {&dQ_, &dK_, &G_, &X_}) m->zero();
      for (std::int64_t h = 0; h < z_.own_heads; ++h) head(h, state_of(starts, h, z_), state_of(R_, h, z_));
      pairs_to_Q_and_K();
      c_.Q.write_gradient(dQ_, g_.q, c_.at);
      c_.K.write_gradient(dK_, g_.k, c_.at);
    }
  }

 private:
  void head(std::int64_t h, const Matrix<A>& S, const Matrix<A>& R) {
    const HeadTokens<A> t = c_.tokens.head(h);
    c_.set_head(h, has_start_ ? &S : nullptr);
    load<T>(dO_, d_o_, c_.at.t0, c_.channel(h));
    solve(t, R);
    pairs(t);
    A across = 0;  // from the start of the chunk to its end: part of every dg
    if (has_start_ && has_end_) across = t.whole * dot(S.data, R.data, z_.state());
    from_start(t, S);
    to_end(t, R);
    if (pass_on_) pass_state_gradient(t, R);
    write_v(t, h);
    finish_decays(h, across);
  }

  /// Z, and through_end[l] = u_l . to_end (K R)_l.
  void solve(const HeadTokens<A>& t, const Matrix<A>& R) {
    const std::int64_t n = c_.at.n;
    if (has_end_)
      multiply(Into::set, Z_, c_.K.rows, R);
    else
      Z_.zero();
    for (std::int64_t l = 0; l < n; ++l) {
      A* const z = Z_.row(l);
      for (std::int64_t c = 0; c < z_.value_dim; ++c) z[c] *= t.to_end[l];
      through_end_.data[l] = has_end_ ? dot(z, c_.U.row(l), z_.value_dim) : A(0);
    }
    for_row_blocks(n, [&](std::int64_t r0, std::int64_t r1) {
      add_transposed_product(Z_.row_range(r0, r1), c_.P.part(r0, n, r0, r1), dO_.row_range(r0, n));
    });
    c_.solve_transposed(Z_);
  }

  /// Between tokens: G and X, and the parts of dg and dbeta.
  void pairs(const HeadTokens<A>& t) {
    const std::int64_t n = c_.at.n;
    transpose(U_transposed_.data, U_transposed_.stride, c_.U.data, c_.U.stride, n, z_.value_dim);
    for_row_blocks(n, [&](std::int64_t r0, std::int64_t r1) {
      multiply(Into::set, scores_.part(r0, r1, 0, r1), dO_.row_range(r0, r1), U_transposed_.col_range(0, r1));
      multiply(Into::set, solved_scores_.part(r0, r1, 0, r1), Z_.row_range(r0, r1),
               U_transposed_.col_range(0, r1));
    });
    std::fill_n(below_.data, below_.cols, A(0));
    for (std::int64_t l = n - 1; l >= 0; --l) {
      const std::int64_t columns = std::min(z_.padded_chunk, padded(l + 1));
      const auto [crossing, direct] = pair_row(t, l, columns);
      dg_.data[l] = crossing;
      dbeta_.data[l] = direct + dot(Z_.row(l), c_.E.row(l), z_.value_dim);
    }
  }

  /// Row l. Returns the parts of dg_l and dbeta_l. below_: sums of the products of the rows from l on.
  std::pair<A, A> pair_row(const HeadTokens<A>& t, std::int64_t l, std::int64_t columns) const {
    const A* __restrict number = c_.tokens.numbers();
    const A* __restrict qk = c_.QK.row(l);
    const A* __restrict kk = c_.KK.row(l);
    const A* __restrict d = c_.D.row(l);
    const A* __restrict scores = scores_.row(l);
    const A* __restrict solved_scores = solved_scores_.row(l);
    A* __restrict G = G_.row(l);
    A* __restrict X = X_.row(l);
    A* __restrict below = below_.data;
    const A here = number[l], beta = t.beta[l];
    A crossing = 0, direct = 0;
#pragma omp simd reduction(+ : crossing, direct)
    for (std::int64_t s = 0; s < columns; ++s) {
      const bool lower = number[s] < here;
      const A g = number[s] <= here ? scores[s] * d[s] : A(0);
      const A x = lower ? -solved_scores[s] * d[s] : A(0);
      const A x_kk = lower ? x * kk[s] : A(0);
      const A sums = below[s] + (lower ? g * qk[s] + beta * x_kk : A(0));
      G[s] += g;
      X[s] += beta * x;
      below[s] = sums;
      crossing += lower ? sums : A(0);
      direct += x_kk;
    }
    return {crossing, direct};
  }

  /// The gradients through the state at the start: dO becomes from_start dO, and E is overwritten by
  /// -beta from_start Z.
  void from_start(const HeadTokens<A>& t, const Matrix<A>& S) {
    if (!has_start_) {
      std::fill_n(through_start_.data, c_.at.n, A(0));
      return;
    }
    multiply(Into::set, work_, c_.Q.rows, S);
    for (std::int64_t l = 0; l < c_.at.n; ++l) {
      A* __restrict d_o = dO_.row(l);
      A* __restrict z = c_.E.row(l);
      for (std::int64_t c = 0; c < z_.value_dim; ++c) d_o[c] *= t.from_start[l];
      set_scaled(z, -t.beta[l] * t.from_start[l], Z_.row(l), z_.value_dim);
      through_start_.data[l] = dot(d_o, work_.row(l), z_.value_dim) + dot(z, c_.B.row(l), z_.value_dim);
    }
    transpose(state_transposed_.data, state_transposed_.stride, S.data, S.stride, S.rows, S.cols);
    multiply(Into::add, dQ_, dO_, state_transposed_);
    multiply(Into::add, dK_, c_.E, state_transposed_);
  }

  /// The gradient through the state at the end: dK += to_end U R^T.
  void to_end(const HeadTokens<A>& t, const Matrix<A>& R) {
    if (!has_end_) return;
    for (std::int64_t l = 0; l < c_.at.n; ++l)
      set_scaled(work_.row(l), t.to_end[l], c_.U.row(l), z_.value_dim);
    transpose(state_transposed_.data, state_transposed_.stride, R.data, R.stride, R.rows, R.cols);
    multiply(Into::add, dK_, work_, state_transposed_);
  }

  /// R of the previous chunk, which must exist: this chunk then has a state at its start.
  void pass_state_gradient(const HeadTokens<A>& t, const Matrix<A>& R) {
    for (std::int64_t i = 0; i < z_.state(); ++i) R.data[i] *= t.whole;
    add_transposed_product(R, c_.Q.rows, dO_);
    add_transposed_product(R, c_.K.rows, c_.E);
  }

  /// dV = beta Z
  void write_v(const HeadTokens<A>& t, std::int64_t h) {
    for (std::int64_t l = 0; l < c_.at.n; ++l) {
      A* const z = Z_.row(l);
      for (std::int64_t c = 0; c < z_.value_dim; ++c) z[c] *= t.beta[l];
    }
    store<T>(Z_, g_.v, c_.at.t0, c_.channel(h));
  }

  void finish_decays(std::int64_t h, A across) {
    A* __restrict dg = dg_.data;
    A ended = 0;
    for (std::int64_t t = 0; t < c_.at.n; ++t) {
      dg[t] += across + ended;
      ended += through_end_.data[t];
    }
    A started = 0;
    for (std::int64_t t = c_.at.n - 1; t >= 0; --t) {
      started += through_start_.data[t];
      dg[t] += started;
    }
    c_.tokens.write_gradients(g_, c_.at, h, dg, dbeta_.data);
  }

  /// dQ += G K, dK += G^T Q + (X + X^T) K, after all heads have added to G and X.
  void pairs_to_Q_and_K() {
    const std::int64_t n = c_.at.n;
    const Matrix<A>&Q = c_.Q.rows, &K = c_.K.rows;
    for_row_blocks(n, [&](std::int64_t r0, std::int64_t r1) {
      multiply(Into::add, dQ_.row_range(r0, r1), G_.part(r0, r1, 0, r1), K.row_range(0, r1));
      multiply(Into::add, dK_.row_range(r0, r1), X_.part(r0, r1, 0, r1), K.row_range(0, r1));
      add_transposed_product(dK_.row_range(r0, r1), G_.part(r0, n, r0, r1), Q.row_range(r0, n));
      add_transposed_product(dK_.row_range(r0, r1), X_.part(r0, n, r0, r1), K.row_range(r0, n));
    });
  }

  const DeltaRuleProblem& p_;
  const DeltaRuleGradients& g_;
  const Tensor &d_o_, &starts_;
  Sizes z_;
  ChunkProducts<T> c_;
  Matrix<A> dQ_, dK_;                 // gradients of the normalised rows [n, key_dim]
  Matrix<A> dO_, Z_, work_;           // [n, value_dim]
  Matrix<A> scores_, solved_scores_;  // dO U^T and Z U^T [n, n], on and below the diagonal
  Matrix<A> G_, X_;                   // [n, n], summed over value heads
  Matrix<A> U_transposed_;            // [value_dim, n]
  Matrix<A> state_transposed_;        // S^T, then R^T
  Matrix<A> R_;                       // of all heads of the key head
  Matrix<A> below_;                   // [1, n], like the next four; see pair_row
  Matrix<A> dg_, dbeta_;
  Matrix<A> through_start_, through_end_;  // for each token: the terms through S, and the term through R
  Workspace<A> memory_;

  // The current chunk.
  bool has_start_ = false, has_end_ = false;  // S, R may differ from zero
  bool pass_on_ = false;                      // there is a chunk before
};

}  // namespace

void delta_rule_chunked_backward(const DeltaRuleProblem& problem, const DeltaRuleGradients& gradients,
                                 const Tensor& d_o, const Tensor& chunk_starts) {
  delta_rule::run_kernels(problem, [&]<class T>(TypeTag<T>) {
    return ChunkedBackward<T>(problem, gradients, d_o, chunk_starts);
  });
}

}  // namespace nemocube::cpu
