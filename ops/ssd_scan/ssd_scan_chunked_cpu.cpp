#include <algorithm>

#include "ops/ssd_scan/ssd_scan_chunks_cpu.h"
#include "ops/transpose.h"

/// Forward of one chunk of n tokens, for the heads of one group side by side. L[l, s] is the decay from token
/// s to token l, zero for s > l; H is the state at the start of the chunk (docs/mamba2.md, "Chunked
/// forward"):
///   off-diagonal     Y  = from_start (C H^T) + D X
///   diagonal block   Y += (L * C B^T) dt X
///   state passing    H' = whole H + (to_end dt X)^T B        the second term is the chunk's own state
/// The names come from section 6 of the paper. There (L * C B^T) is a matrix with the tokens of all chunks as
/// rows and columns. Its diagonal blocks are the chunks; all other blocks factor through the states between
/// chunks.
namespace nemocube::cpu {

namespace {

using namespace ssd;

/// Row l of masked = products * L. Columns right of the diagonal that are read later are set to zero.
template <class A>
void mask_row(A* __restrict masked, const A* __restrict products, const A* __restrict cumsum,
              const A* __restrict rest, const A* __restrict token, std::int64_t l, std::int64_t columns) {
  const A here = cumsum[l], here_rest = rest[l], here_token = token[l];
  for (std::int64_t s = 0; s < columns; ++s) {
    const A span = (here - cumsum[s]) + (here_rest - rest[s]);
    const A decay = vec_exp(span > 0 ? A(0) : span);  // right of the diagonal e^span may overflow
    masked[s] = token[s] <= here_token ? products[s] * decay : A(0);
  }
}

template <class T>
class ChunkedForward {
 public:
  using A = acc_t<T>;

  ChunkedForward(const SsdProblem& p, const Tensor& y, const SsdStates& states)
      : p_(p),
        y_(y),
        states_(states),
        z_(p),
        decays_(p, z_),
        memory_({{B_, z_.padded_chunk, z_.state},
                 {C_, z_.padded_chunk, z_.state},
                 {B_transposed_, z_.state, z_.padded_chunk},
                 {products_, z_.padded_chunk, z_.padded_chunk},
                 {masked_, z_.padded_chunk, z_.padded_chunk},
                 {dtX_, z_.padded_chunk, z_.group_channels},
                 {Y_, z_.padded_chunk, z_.group_channels},
                 {last_state_, z_.group_channels, z_.state},
                 {state_transposed_, z_.state, z_.group_channels}}) {}

  void operator()(std::int64_t sequence, std::int64_t group) {
    const std::int64_t begin = p_.sequences.begin(sequence), end = p_.sequences.end(sequence);
    const std::int64_t first = p_.chunks.first_of(sequence), count = p_.chunks.count_of(sequence);
    // The place of the state before chunk i: the tensor that backward reads, if there is one. Without such a
    // tensor every state is in working memory; the state after the last chunk always is.
    const auto state_before = [&](std::int64_t i) {
      return states_.chunk_starts.defined() && i < count
                 ? group_states<A>(states_.chunk_starts, first + i, group, z_)
                 : last_state_;
    };
    initial_state(state_before(0), sequence, group);
    has_state_ = p_.initial_state.defined();
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t t0 = begin + i * z_.chunk;
      at_ = {group, first + i, t0, std::min(z_.chunk, end - t0)};
      next_rows_ = std::min(z_.chunk, end - t0 - at_.n);
      chunk(state_before(i));
      if (i + 1 < count || states_.final.defined()) pass_state(state_before(i), state_before(i + 1));
      has_state_ = true;
    }
    if (states_.final.defined())
      std::copy_n(state_before(count).data, z_.group_channels * z_.state,
                  group_states<A>(states_.final, sequence, group, z_).data);
  }

 private:
  void initial_state(const Matrix<A>& to, std::int64_t sequence, std::int64_t group) const {
    if (!p_.initial_state.defined()) return to.zero();
    std::copy_n(group_states<A>(p_.initial_state, sequence, group, z_).data, to.rows * to.cols, to.data);
  }

  void chunk(const Matrix<A>& state) {
    for (Matrix<A>* m : {&B_, &C_, &dtX_, &Y_}) m->rows = at_.n;
    decays_.compute(at_);
    load<T>(B_, p_.B, at_.t0, at_.group * z_.state);
    load<T>(C_, p_.C, at_.t0, at_.group * z_.state);
    token_products();
    if (has_state_) off_diagonal(state);
    for (const Tensor* t : {&p_.B, &p_.C})
      prefetch_rows<T>(*t, at_.t0 + at_.n, next_rows_, at_.group * z_.state, z_.state);
    for (std::int64_t h = 0; h < z_.group_heads; ++h) {
      for (const Tensor* t : {&p_.x, &y_})
        prefetch_rows<T>(*t, at_.t0 + at_.n, next_rows_, at_.group * z_.group_channels + h * z_.head_dim,
                         z_.head_dim);
      scale_rows(h);
      diagonal_block(h);
    }
    store<T>(Y_, y_, at_.t0, at_.group * z_.group_channels);
  }

  /// C B^T on and below the diagonal: the same for all heads of the group.
  void token_products() {
    transpose(B_transposed_.data, B_transposed_.stride, B_.data, B_.stride, B_.rows, B_.cols);
    for_row_blocks(at_.n, [&](std::int64_t r0, std::int64_t r1) {
      multiply(Into::set, products_.part(r0, r1, 0, r1), C_.row_range(r0, r1),
               B_transposed_.col_range(0, r1));
    });
  }

  /// Y = C H^T, before its decay.
  void off_diagonal(const Matrix<A>& state) {
    transpose(state_transposed_.data, state_transposed_.stride, state.data, state.stride, state.rows,
              state.cols);
    multiply(Into::set, Y_, C_, state_transposed_);
  }

  /// dt X of head h, and Y = from_start Y + D X.
  void scale_rows(std::int64_t h) {
    const HeadDecays<A> d = decays_.head(h);
    const std::int64_t c0 = h * z_.head_dim;
    const A skip = p_.D.template data<A>()[at_.group * z_.group_heads + h];
    const T* row = p_.x.row<T>(at_.t0) + at_.group * z_.group_channels + c0;
    for (std::int64_t l = 0; l < at_.n; ++l, row += p_.x.row_stride()) {
      const T* __restrict x = row;
      A* __restrict dtx = dtX_.row(l) + c0;
      A* __restrict y = Y_.row(l) + c0;
      const A dt = d.dt[l], from_start = d.from_start[l];
      if (!has_state_) std::fill_n(y, z_.head_dim, A(0));
      for (std::int64_t k = 0; k < z_.head_dim; ++k) {
        const A v = static_cast<A>(x[k]);
        dtx[k] = dt * v;
        y[k] = from_start * y[k] + skip * v;
      }
    }
  }

  /// Y += (L * C B^T) dt X for head h.
  void diagonal_block(std::int64_t h) {
    const HeadDecays<A> d = decays_.head(h);
    for_row_blocks(at_.n, [&](std::int64_t r0, std::int64_t r1) {
      for (std::int64_t l = r0; l < r1; ++l)
        mask_row(masked_.row(l), products_.row(l), d.cumsum, d.cumsum_rest, decays_.token_numbers(), l,
                 padded(r1));
    });
    const std::int64_t c0 = h * z_.head_dim, c1 = c0 + z_.head_dim;
    for_row_blocks(at_.n, [&](std::int64_t r0, std::int64_t r1) {
      multiply(Into::add, Y_.part(r0, r1, c0, c1), masked_.part(r0, r1, 0, r1), dtX_.part(0, r1, c0, c1));
    });
  }

  /// H' = whole H + (to_end dt X)^T B. `from` and `to` may be the same; dt X is overwritten.
  void pass_state(const Matrix<A>& from, const Matrix<A>& to) {
    for (std::int64_t h = 0; h < z_.group_heads; ++h) {
      const HeadDecays<A> d = decays_.head(h);
      for (std::int64_t l = 0; l < at_.n; ++l) {
        A* __restrict x = dtX_.row(l) + h * z_.head_dim;
        for (std::int64_t k = 0; k < z_.head_dim; ++k) x[k] *= d.to_end[l];
      }
      const A whole = d.whole;
      const std::int64_t size = z_.head_dim * z_.state;
      for (std::int64_t k = h * size; k < (h + 1) * size; ++k) to.data[k] = whole * from.data[k];
    }
    add_transposed_product(to, dtX_, B_);
  }

  const SsdProblem& p_;
  const Tensor& y_;
  const SsdStates& states_;
  Sizes z_;
  ChunkDecays<T> decays_;
  Matrix<A> B_, C_;             // [n, state]
  Matrix<A> B_transposed_;      // [state, n]
  Matrix<A> products_;          // C B^T [n, n]
  Matrix<A> masked_;            // L * C B^T of one head [n, n]
  Matrix<A> dtX_, Y_;           // [n, group_channels]
  Matrix<A> last_state_;        // H [group_channels, state]
  Matrix<A> state_transposed_;  // H^T
  Workspace<A> memory_;

  // The current chunk.
  ChunkPart at_;
  std::int64_t next_rows_ = 0;  // tokens of the next chunk
  bool has_state_ = false;      // the state at the start of the chunk may differ from zero
};

}  // namespace

void ssd_chunked_forward(const SsdProblem& problem, const Tensor& y, const SsdStates& states) {
  run_kernels(problem, [&]<class T>(TypeTag<T>) { return ChunkedForward<T>(problem, y, states); });
}

}  // namespace nemocube::cpu
