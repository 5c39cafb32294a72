#include <algorithm>
#include <utility>

#include "ops/ssd_scan/ssd_scan_chunks_cpu.h"
#include "ops/transpose.h"

/// Backward of one chunk, for the heads of one group, last chunk first. R is the gradient of the state at the
/// end of the chunk, H the state at its start, E[s, l] the decay from token s to token l, zero for l < s
/// (docs/mamba2.md, "Chunked backward"):
///   Q  = to_end (B R^T) + (B C^T * E) dY        dX = dt Q + D dY
///   P  = (X dY^T * E) dt, summed over heads     row s, column l
///   dC = sum over heads of from_start dY H,  + P^T B
///   dB = sum over heads of to_end dt X R,    + P C
///   R' = whole R + (from_start dY)^T C          R of the previous chunk
/// The gradient da_t of the log-decay a_t is the sum of every product that crosses from a token before t to a
/// token at or after t. Each product is added directly; no large sums are subtracted from each other.
namespace nemocube::cpu {
namespace {

using namespace ssd;

/// The rows of matrices between tokens that one row of the diagonal block reads and writes.
template <class A>
struct PairRow {
  const A* products;  // B C^T
  const A* scores;    // X dY^T
  A* masked;          // = products * E
  A* P;               // += scores * E dt
  A* above;           // sums of scores * E dt * products over the rows above this one; += this row
};

/// Row s, columns [begin, end). Returns two parts from within the chunk: the part of da_s and the part of
/// ddt_s.
template <class A>
std::pair<A, A> pair_row(const PairRow<A>& row, const HeadDecays<A>& d, const A* __restrict token,
                         std::int64_t s, std::int64_t begin, std::int64_t end) {
  const A* __restrict products = row.products;
  const A* __restrict scores = row.scores;
  A* __restrict masked = row.masked;
  A* __restrict P = row.P;
  A* __restrict above = row.above;
  const A* __restrict cumsum = d.cumsum;
  const A* __restrict rest = d.cumsum_rest;
  const A here = cumsum[s], here_rest = rest[s], here_token = token[s], dt = d.dt[s];
  A crossing = 0, direct = 0;
#pragma omp simd reduction(+ : crossing, direct)
  for (std::int64_t l = begin; l < end; ++l) {
    const A span = (cumsum[l] - here) + (rest[l] - here_rest);
    const A decay = vec_exp(span > 0 ? A(0) : span);  // below the diagonal e^span may overflow
    const A e = token[l] >= here_token ? decay : A(0);
    const A m = products[l] * e, psi = scores[l] * e * dt, sums = above[l];
    masked[l] = m;
    P[l] += psi;
    crossing += token[l] >= here_token ? sums : A(0);
    direct += m * scores[l];
    above[l] = sums + psi * products[l];
  }
  return {crossing, direct};
}

template <class T>
class ChunkedBackward {
 public:
  using A = acc_t<T>;

  ChunkedBackward(const SsdProblem& p, const SsdGradients& g, const Tensor& dy, const Tensor& starts)
      : p_(p),
        g_(g),
        dy_(dy),
        starts_(starts),
        z_(p),
        decays_(p, z_),
        memory_({{B_, z_.padded_chunk, z_.state},
                 {C_, z_.padded_chunk, z_.state},
                 {dB_, z_.padded_chunk, z_.state},
                 {dC_, z_.padded_chunk, z_.state},
                 {dC_head_, z_.padded_chunk, z_.state},
                 {products_, z_.padded_chunk, z_.padded_chunk},
                 {scores_, z_.padded_chunk, z_.padded_chunk},
                 {masked_, z_.padded_chunk, z_.padded_chunk},
                 {P_, z_.padded_chunk, z_.padded_chunk},
                 {X_, z_.padded_chunk, z_.group_channels},
                 {dY_, z_.padded_chunk, z_.group_channels},
                 {Q_, z_.padded_chunk, z_.group_channels},
                 {decayed_, z_.padded_chunk, z_.group_channels},
                 {dY_transposed_, z_.head_dim, z_.padded_chunk},
                 {transposed_, z_.state, std::max(z_.padded_chunk, z_.group_channels)},
                 {R_, z_.group_channels, z_.state},
                 {above_, 1, z_.padded_chunk},
                 {ddt_, 1, z_.padded_chunk},
                 {da_, 1, z_.padded_chunk},
                 {through_start_, 1, z_.padded_chunk},
                 {through_end_, 1, z_.padded_chunk}}) {}

  void operator()(std::int64_t sequence, std::int64_t group) {
    const std::int64_t begin = p_.sequences.begin(sequence), end = p_.sequences.end(sequence);
    const std::int64_t first = p_.chunks.first_of(sequence), count = p_.chunks.count_of(sequence);
    R_.zero();
    for (std::int64_t i = count - 1; i >= 0; --i) {
      const std::int64_t t0 = begin + i * z_.chunk;
      at_ = {group, first + i, t0, std::min(z_.chunk, end - t0)};
      rows_before_ = i > 0 ? z_.chunk : 0;
      has_start_ = i > 0 || p_.initial_state.defined();
      has_end_ = i + 1 < count;
      H_ = group_states<A>(starts_, at_.index, group, z_);
      chunk();
      if (i > 0) pass_state_gradient();
    }
  }

 private:
  void chunk() {
    for (Matrix<A>* m : {&B_, &C_, &dB_, &dC_, &dC_head_, &P_, &X_, &dY_, &Q_, &decayed_}) m->rows = at_.n;
    decays_.compute(at_);
    load<T>(B_, p_.B, at_.t0, at_.group * z_.state);
    load<T>(C_, p_.C, at_.t0, at_.group * z_.state);
    load<T>(dY_, dy_, at_.t0, at_.group * z_.group_channels);
    upper_products(products_, B_, C_, transposed_.reshaped(z_.state, z_.padded_chunk));
    for (std::int64_t h = 0; h < z_.group_heads; ++h) load_x(h);
    chunk_state_gradients();
    dC_.zero();
    P_.zero();
    for (const Tensor* t : {&p_.B, &p_.C, &g_.B, &g_.C})
      prefetch_rows<T>(*t, at_.t0 - rows_before_, rows_before_, at_.group * z_.state, z_.state);
    for (std::int64_t h = 0; h < z_.group_heads; ++h) {
      for (const Tensor* t : {&p_.x, &dy_, &g_.x})
        prefetch_rows<T>(*t, at_.t0 - rows_before_, rows_before_,
                         at_.group * z_.group_channels + h * z_.head_dim, z_.head_dim);
      std::fill_n(da_.data, at_.n, A(0));
      std::fill_n(ddt_.data, at_.n, A(0));
      chunk_state(h);
      off_diagonal(h);
      diagonal_block(h);
      finish_decays(h);
      finish_x(h);
    }
    pairs_to_B_and_C();
    store<T>(dB_, g_.B, at_.t0, at_.group * z_.state);
    store<T>(dC_, g_.C, at_.t0, at_.group * z_.state);
  }

  /// X, and decayed = to_end dt X, of head h.
  void load_x(std::int64_t h) {
    const HeadDecays<A> d = decays_.head(h);
    const std::int64_t c0 = h * z_.head_dim;
    const T* from = p_.x.row<T>(at_.t0) + at_.group * z_.group_channels + c0;
    for (std::int64_t s = 0; s < at_.n; ++s, from += p_.x.row_stride()) {
      const A factor = d.to_end[s] * d.dt[s];
      A* __restrict x = X_.row(s) + c0;
      A* __restrict decayed = decayed_.row(s) + c0;
      for (std::int64_t k = 0; k < z_.head_dim; ++k) {
        x[k] = static_cast<A>(from[k]);
        decayed[k] = factor * x[k];
      }
    }
  }

  /// to = u v^T on and above the diagonal, padded with zeros to whole vectors. `v_transposed` is working
  /// memory.
  void upper_products(const Matrix<A>& to, const Matrix<A>& u, const Matrix<A>& v,
                      const Matrix<A>& v_transposed) const {
    transpose(v_transposed.data, v_transposed.stride, v.data, v.stride, v.rows, v.cols);
    const std::int64_t n = at_.n;
    for_row_blocks(n, [&](std::int64_t r0, std::int64_t r1) {
      multiply(Into::set, to.part(r0, r1, r0, n), u.row_range(r0, r1), v_transposed.col_range(r0, n));
      for (std::int64_t s = r0; s < r1; ++s) std::fill(to.row(s) + n, to.row(s) + padded(n), A(0));
    });
  }

  /// The gradients that the state at the end of the chunk sends back to the chunk's tokens, all heads at
  /// once: Q = B R^T before its decay, dB = to_end dt X R.
  void chunk_state_gradients() {
    if (!has_end_) {
      Q_.zero();
      dB_.zero();
      return;
    }
    const Matrix<A> R_transposed = transposed_.reshaped(z_.state, z_.group_channels);
    transpose(R_transposed.data, R_transposed.stride, R_.data, R_.stride, R_.rows, R_.cols);
    multiply(Into::set, Q_, B_, R_transposed);
    multiply(Into::set, dB_, decayed_, R_);
  }

  /// The rest for head h: multiplies Q by its decay, sets through_end[s] = x_s to_end dt R B_s, and sets this
  /// part of ddt_s.
  void chunk_state(std::int64_t h) {
    if (!has_end_) {
      std::fill_n(through_end_.data, at_.n, A(0));
      return;
    }
    const HeadDecays<A> d = decays_.head(h);
    for (std::int64_t s = 0; s < at_.n; ++s) {
      const A* __restrict x = X_.row(s) + h * z_.head_dim;
      A* __restrict q = Q_.row(s) + h * z_.head_dim;
      const A to_end = d.to_end[s];
      A sum = 0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t k = 0; k < z_.head_dim; ++k) {
        q[k] *= to_end;
        sum += x[k] * q[k];
      }
      ddt_.data[s] = sum;
      through_end_.data[s] = d.dt[s] * sum;
    }
  }

  /// The gradients from the state at the start of the chunk to the tokens of head h: the head's part of dC,
  /// through_start[l] = from_start dy_l H C_l, and decayed = from_start dY.
  void off_diagonal(std::int64_t h) {
    if (!has_start_) {
      std::fill_n(through_start_.data, at_.n, A(0));
      return;
    }
    const HeadDecays<A> d = decays_.head(h);
    const std::int64_t c0 = h * z_.head_dim, c1 = c0 + z_.head_dim;
    for (std::int64_t l = 0; l < at_.n; ++l) {
      const A from_start = d.from_start[l];
      const A* __restrict dy = dY_.row(l) + c0;
      A* __restrict decayed = decayed_.row(l) + c0;
      for (std::int64_t k = 0; k < z_.head_dim; ++k) decayed[k] = from_start * dy[k];
    }
    multiply(Into::set, dC_head_, decayed_.col_range(c0, c1), H_.row_range(c0, c1));
    for (std::int64_t l = 0; l < at_.n; ++l) {
      const A* __restrict part = dC_head_.row(l);
      const A* __restrict c = C_.row(l);
      A* __restrict dc = dC_.row(l);
      A sum = 0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t k = 0; k < z_.state; ++k) {
        dc[k] += part[k];
        sum += part[k] * c[k];
      }
      through_start_.data[l] = sum;
    }
  }

  /// The gradients between tokens of head h: Q += (B C^T * E) dY, P, and parts of da and ddt.
  void diagonal_block(std::int64_t h) {
    const HeadDecays<A> d = decays_.head(h);
    const std::int64_t n = at_.n, c0 = h * z_.head_dim, c1 = c0 + z_.head_dim;
    upper_products(scores_, X_.col_range(c0, c1), dY_.col_range(c0, c1), dY_transposed_);
    std::fill_n(above_.data, above_.cols, A(0));
    for_row_blocks(n, [&](std::int64_t r0, std::int64_t r1) {
      for (std::int64_t s = r0; s < r1; ++s) {
        const PairRow<A> row{products_.row(s), scores_.row(s), masked_.row(s), P_.row(s), above_.data};
        const auto [crossing, direct] = pair_row(row, d, decays_.token_numbers(), s, r0, padded(n));
        da_.data[s] += crossing;
        ddt_.data[s] += direct;
      }
      multiply(Into::add, Q_.part(r0, r1, c0, c1), masked_.part(r0, r1, r0, n), dY_.part(r0, n, c0, c1));
    });
  }

  /// Gradients of dt_raw, A_log, dt_bias and D of head h.
  void finish_decays(std::int64_t h) {
    const HeadDecays<A> d = decays_.head(h);
    A* __restrict da = da_.data;
    A across = 0;  // from the start of the chunk to its end: part of every da
    if (has_start_ && has_end_)
      across = d.whole * dot(R_.row(h * z_.head_dim), H_.row(h * z_.head_dim), z_.head_dim * z_.state);
    A ended = 0, skip_sum = 0;
    for (std::int64_t t = 0; t < at_.n; ++t) {
      da[t] += across + ended;
      ended += through_end_.data[t];
      skip_sum += scores_.row(t)[t];
    }
    A started = 0;
    for (std::int64_t t = at_.n - 1; t >= 0; --t) {
      started += through_start_.data[t];
      da[t] += started;
    }
    g_.D.row<A>(at_.index)[at_.group * z_.group_heads + h] = skip_sum;
    decays_.write_gradients(g_, at_, h, ddt_.data, da_.data);
  }

  /// dX = dt Q + D dY of head h.
  void finish_x(std::int64_t h) {
    const HeadDecays<A> d = decays_.head(h);
    const std::int64_t c0 = h * z_.head_dim;
    const A skip = p_.D.template data<A>()[at_.group * z_.group_heads + h];
    T* row = g_.x.row<T>(at_.t0) + at_.group * z_.group_channels + c0;
    for (std::int64_t s = 0; s < at_.n; ++s, row += g_.x.row_stride()) {
      const A dt = d.dt[s];
      const A* __restrict q = Q_.row(s) + c0;
      const A* __restrict dy = dY_.row(s) + c0;
      T* __restrict dx = row;
      for (std::int64_t k = 0; k < z_.head_dim; ++k) dx[k] = static_cast<T>(dt * q[k] + skip * dy[k]);
    }
  }

  /// dB += P C, dC += P^T B, after all heads have added to P.
  void pairs_to_B_and_C() {
    const std::int64_t n = at_.n;
    for_row_blocks(n, [&](std::int64_t r0, std::int64_t r1) {
      multiply(Into::add, dB_.row_range(r0, r1), P_.part(r0, r1, r0, n), C_.row_range(r0, n));
      add_transposed_product(dC_.row_range(r0, r1), P_.part(0, r1, r0, r1), B_.row_range(0, r1));
    });
  }

  /// Forms R of the previous chunk, which must exist: this chunk then has a state at its start, and decayed
  /// holds from_start dY.
  void pass_state_gradient() {
    for (std::int64_t h = 0; h < z_.group_heads; ++h) {
      A* __restrict r = R_.row(h * z_.head_dim);
      const A whole = decays_.head(h).whole;
      for (std::int64_t k = 0; k < z_.head_dim * z_.state; ++k) r[k] *= whole;
    }
    add_transposed_product(R_, decayed_, C_);
  }

  const SsdProblem& p_;
  const SsdGradients& g_;
  const Tensor &dy_, &starts_;
  Sizes z_;
  ChunkDecays<T> decays_;
  Matrix<A> B_, C_, dB_, dC_;              // [n, state]
  Matrix<A> dC_head_;                      // the part of dC that one head receives from H
  Matrix<A> products_, scores_;            // B C^T, and X dY^T of one head: [n, n], on and above the diagonal
  Matrix<A> masked_, P_;                   // B C^T * E of one head, and P: [n, n]
  Matrix<A> X_, dY_, Q_;                   // [n, group_channels]
  Matrix<A> decayed_;                      // to_end dt X, later from_start dY
  Matrix<A> dY_transposed_;                // of one head [head_dim, n]
  Matrix<A> R_;                            // [group_channels, state]
  Matrix<A> transposed_;                   // C^T [state, n], then R^T [state, group_channels]
  Matrix<A> above_;                        // [1, n] of one head, like the next four; see PairRow
  Matrix<A> ddt_, da_;                     // gradients of dt as the factor of x, and of a
  Matrix<A> through_start_, through_end_;  // for each token: the term through H, and the term through R
  Workspace<A> memory_;

  // The current chunk.
  ChunkPart at_;
  std::int64_t rows_before_ = 0;              // tokens of the previous chunk
  bool has_start_ = false, has_end_ = false;  // H, R may differ from zero
  Matrix<A> H_;                               // [group_channels, state]
};

}  // namespace

void ssd_chunked_backward(const SsdProblem& problem, const SsdGradients& gradients, const Tensor& dy,
                          const Tensor& chunk_starts) {
  run_kernels(problem,
              [&]<class T>(TypeTag<T>) { return ChunkedBackward<T>(problem, gradients, dy, chunk_starts); });
}

}  // namespace nemocube::cpu
