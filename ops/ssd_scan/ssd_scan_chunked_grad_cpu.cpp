#include <algorithm>
#include <utility>

#include "ops/ssd_scan/ssd_scan_kernels.h"
#include "ops/tile.h"
#include "ops/transpose.h"

/// Backward of one chunk, for the heads of one group, last chunk first. With R the gradient of the state at
/// the end of the chunk, H the state at its start, L[l, s] the decay from s to l, and E[s, l] = L[l, s]:
///   Q  = out (B R^T) + (B C^T * E) dY          dX = dt Q + D dY
///   P  = (X dY^T * E) dt, summed over heads    (rows s, columns l >= s)
///   dC = sum_heads in dY H + P^T B             dB = sum_heads out dt X R + P C
///   R' = whole R + (in dY)^T C
/// The gradient of the log-decay a_t collects every product that crosses from a token before t to one at or
/// after it, each added where it belongs: sums of unlike signs are never subtracted from each other.
namespace nemocube::cpu {
namespace {

using namespace ssd;

/// Row s of the products between tokens, columns [begin, end): mixed = dots * E, paired += xy * E dt.
/// `before` sums w = xy * E dt * dots over the rows above s. Returns the part of da_s that crosses within the
/// chunk and that of ddt_s.
template <class A>
std::pair<A, A> pair_row(A* __restrict mixed, A* __restrict paired, A* __restrict before,
                         const A* __restrict dots, const A* __restrict xy, const A* __restrict sum,
                         const A* __restrict rest, const A* __restrict place, A dt, std::int64_t s,
                         std::int64_t begin, std::int64_t end) {
  const A here = sum[s], here_rest = rest[s], here_place = place[s];
  A crossing = 0, direct = 0;
#pragma omp simd reduction(+ : crossing, direct)
  for (std::int64_t l = begin; l < end; ++l) {
    const A span = (sum[l] - here) + (rest[l] - here_rest);
    const A decay = vec_exp(span > 0 ? A(0) : span);  // below the diagonal e^span may overflow
    const A e = place[l] >= here_place ? decay : A(0);
    const A m = dots[l] * e, psi = xy[l] * e * dt, sums = before[l];
    mixed[l] = m;
    paired[l] += psi;
    crossing += place[l] >= here_place ? sums : A(0);
    direct += m * xy[l];
    before[l] = sums + psi * dots[l];
  }
  return {crossing, direct};
}

template <class T>
class Backward {
 public:
  using A = acc_t<T>;

  Backward(const SsdProblem& p, const SsdGradients& g, const Tensor& dy, const Tensor& starts)
      : p_(p),
        g_(g),
        dy_(dy),
        starts_(starts),
        z_(p),
        ld_(Scratch<A>::rounded(z_.chunk)),
        size_(z_.group_channels * z_.state),
        steps_(p, z_),
        memory_(6 * ld_ * z_.state + 4 * ld_ * ld_ + 4 * ld_ * z_.group_channels + ld_ * z_.head_dim +
                2 * size_ + 7 * ld_ + 16 * 24),
        b_(memory_.take(ld_ * z_.state)),
        c_(memory_.take(ld_ * z_.state)),
        db_(memory_.take(ld_ * z_.state)),
        dc_(memory_.take(ld_ * z_.state)),
        dc_head_(memory_.take(ld_ * z_.state)),
        dots_(memory_.take(ld_ * ld_)),
        scores_(memory_.take(ld_ * ld_)),
        mixed_(memory_.take(ld_ * ld_)),
        paired_(memory_.take(ld_ * ld_)),
        x_(memory_.take(ld_ * z_.group_channels)),
        y_(memory_.take(ld_ * z_.group_channels)),
        q_(memory_.take(ld_ * z_.group_channels)),
        scaled_(memory_.take(ld_ * z_.group_channels)),
        y_turned_(memory_.take(ld_ * z_.head_dim)),
        turned_(memory_.take(std::max(ld_ * z_.state, size_))),
        r_(memory_.take(size_)),
        before_(memory_.take(ld_)),
        ddt_(memory_.take(ld_)),
        da_(memory_.take(ld_)),
        from_start_(memory_.take(ld_)),
        to_end_(memory_.take(ld_)) {}

  void operator()(std::int64_t sequence, std::int64_t group) {
    const std::int64_t begin = p_.sequences.begin(sequence), length = p_.sequences.length(sequence);
    const std::int64_t last = (length + z_.chunk - 1) / z_.chunk - 1, first = p_.first_chunk(sequence);
    std::fill_n(r_, size_, A(0));
    for (std::int64_t i = last; i >= 0; --i) {
      group_ = group;
      index_ = first + i;
      t0_ = begin + i * z_.chunk;
      n_ = std::min(z_.chunk, length - i * z_.chunk);
      next_ = i > 0 ? z_.chunk : 0;
      has_start_ = i > 0 || p_.initial_state.defined();
      has_end_ = i < last;
      start_ =
          starts_.template data<A>() + (index_ * z_.heads + group * z_.group_heads) * z_.head_dim * z_.state;
      chunk();
      if (i > 0) advance();
    }
  }

 private:
  void chunk() {
    steps_.fill(group_, t0_, n_);
    load<T>(b_, p_.B, t0_, n_, group_ * z_.state, z_.state);
    load<T>(c_, p_.C, t0_, n_, group_ * z_.state, z_.state);
    load<T>(y_, dy_, t0_, n_, group_ * z_.group_channels, z_.group_channels);
    upper_products(b_, z_.state, c_, z_.state, z_.state, turned_, dots_);
    for (std::int64_t h = 0; h < z_.group_heads; ++h) load_x(h);
    if (has_end_) {
      transpose(turned_, z_.group_channels, r_, z_.state, z_.group_channels, z_.state);
      tile_gemm<A, false, false>(n_, z_.group_channels, z_.state, b_, z_.state, turned_, z_.group_channels,
                                 q_, z_.group_channels, false);
      tile_gemm<A, false, false>(n_, z_.state, z_.group_channels, scaled_, z_.group_channels, r_, z_.state,
                                 db_, z_.state, false);
    } else {
      std::fill_n(q_, n_ * z_.group_channels, A(0));
      std::fill_n(db_, n_ * z_.state, A(0));
    }
    std::fill_n(dc_, n_ * z_.state, A(0));
    std::fill_n(paired_, n_ * ld_, A(0));
    for (const Tensor* t : {&p_.B, &p_.C, &g_.B, &g_.C})
      prefetch_rows<T>(*t, t0_ - next_, next_, group_ * z_.state, z_.state);
    for (std::int64_t h = 0; h < z_.group_heads; ++h) {
      for (const Tensor* t : {&p_.x, &dy_, &g_.x})
        prefetch_rows<T>(*t, t0_ - next_, next_, group_ * z_.group_channels + h * z_.head_dim, z_.head_dim);
      std::fill_n(da_, n_, A(0));
      std::fill_n(ddt_, n_, A(0));
      through_end(h);
      through_start(h);
      within(h);
      finish(h);
    }
    for_row_blocks(n_, [&](std::int64_t r0, std::int64_t r1) {
      tile_gemm<A, false, false>(r1 - r0, z_.state, n_ - r0, paired_ + r0 * ld_ + r0, ld_, c_ + r0 * z_.state,
                                 z_.state, db_ + r0 * z_.state, z_.state, true);
      tile_gemm<A, true, false>(r1 - r0, z_.state, r1, paired_ + r0, ld_, b_, z_.state, dc_ + r0 * z_.state,
                                z_.state, true);
    });
    store<T>(db_, g_.B, t0_, n_, group_ * z_.state, z_.state);
    store<T>(dc_, g_.C, t0_, n_, group_ * z_.state, z_.state);
  }

  /// X and out dt X of head h.
  void load_x(std::int64_t h) {
    const A* out = steps_.out + h * steps_.stride;
    const A* dt = steps_.dt + h * steps_.stride;
    const T* from = p_.x.row<T>(t0_) + group_ * z_.group_channels + h * z_.head_dim;
    for (std::int64_t s = 0; s < n_; ++s, from += p_.x.row_stride()) {
      const A factor = out[s] * dt[s];
      A* __restrict x = x_ + s * z_.group_channels + h * z_.head_dim;
      A* __restrict to = scaled_ + s * z_.group_channels + h * z_.head_dim;
      for (std::int64_t k = 0; k < z_.head_dim; ++k) {
        x[k] = static_cast<A>(from[k]);
        to[k] = factor * x[k];
      }
    }
  }

  /// to [n, n] = U V^T where the column is at or after the row's block, zero-padded to whole vectors.
  void upper_products(const A* u, std::int64_t u_stride, const A* v, std::int64_t v_stride,
                      std::int64_t depth, A* v_turned, A* to) const {
    transpose(v_turned, ld_, v, v_stride, n_, depth);
    for_row_blocks(n_, [&](std::int64_t r0, std::int64_t r1) {
      tile_gemm<A, false, false>(r1 - r0, n_ - r0, depth, u + r0 * u_stride, u_stride, v_turned + r0, ld_,
                                 to + r0 * ld_ + r0, ld_, false);
      for (std::int64_t s = r0; s < r1; ++s)
        std::fill(to + s * ld_ + n_, to + s * ld_ + Scratch<A>::rounded(n_), A(0));
    });
  }

  /// What reaches the tokens of head h from R: completes out (B R^T), and to_end[s] = x_s out dt R B_s.
  void through_end(std::int64_t h) {
    if (!has_end_) {
      std::fill_n(to_end_, n_, A(0));
      return;
    }
    for (std::int64_t s = 0; s < n_; ++s) {
      const A* __restrict x = x_ + s * z_.group_channels + h * z_.head_dim;
      A* __restrict q = q_ + s * z_.group_channels + h * z_.head_dim;
      const A out = steps_.out[h * steps_.stride + s];
      A sum = 0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t k = 0; k < z_.head_dim; ++k) {
        q[k] *= out;
        sum += x[k] * q[k];
      }
      ddt_[s] = sum;
      to_end_[s] = steps_.dt[h * steps_.stride + s] * sum;
    }
  }

  /// What H sends to the tokens of head h: its part of dC, from_start[l] = in dy_l H C_l, and in dY.
  void through_start(std::int64_t h) {
    if (!has_start_) {
      std::fill_n(from_start_, n_, A(0));
      return;
    }
    const std::int64_t c0 = h * z_.head_dim;
    for (std::int64_t l = 0; l < n_; ++l) {
      const A in = steps_.in[h * steps_.stride + l];
      const A* __restrict y = y_ + l * z_.group_channels + c0;
      A* __restrict to = scaled_ + l * z_.group_channels + c0;
      for (std::int64_t k = 0; k < z_.head_dim; ++k) to[k] = in * y[k];
    }
    tile_gemm<A, false, false>(n_, z_.state, z_.head_dim, scaled_ + c0, z_.group_channels,
                               start_ + c0 * z_.state, z_.state, dc_head_, z_.state, false);
    for (std::int64_t l = 0; l < n_; ++l) {
      const A* __restrict part = dc_head_ + l * z_.state;
      const A* __restrict c = c_ + l * z_.state;
      A* __restrict to = dc_ + l * z_.state;
      A sum = 0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t k = 0; k < z_.state; ++k) {
        to[k] += part[k];
        sum += part[k] * c[k];
      }
      from_start_[l] = sum;
    }
  }

  /// What tokens of head h send each other.
  void within(std::int64_t h) {
    const std::int64_t c0 = h * z_.head_dim;
    upper_products(x_ + c0, z_.group_channels, y_ + c0, z_.group_channels, z_.head_dim, y_turned_, scores_);
    const A* __restrict sum = steps_.sum + h * steps_.stride;
    const A* __restrict rest = steps_.rest + h * steps_.stride;
    std::fill_n(before_, ld_, A(0));
    for_row_blocks(n_, [&](std::int64_t r0, std::int64_t r1) {
      const std::int64_t end = Scratch<A>::rounded(n_);
      for (std::int64_t s = r0; s < r1; ++s) {
        const std::int64_t row = s * ld_;
        const auto [crossing, direct] =
            pair_row(mixed_ + row, paired_ + row, before_, dots_ + row, scores_ + row, sum, rest,
                     steps_.place, steps_.dt[h * steps_.stride + s], s, r0, end);
        da_[s] += crossing;
        ddt_[s] += direct;
      }
      tile_gemm<A, false, false>(r1 - r0, z_.head_dim, n_ - r0, mixed_ + r0 * ld_ + r0, ld_,
                                 y_ + r0 * z_.group_channels + c0, z_.group_channels,
                                 q_ + r0 * z_.group_channels + c0, z_.group_channels, true);
    });
  }

  void finish(std::int64_t h) {
    const std::int64_t c0 = h * z_.head_dim, head = group_ * z_.group_heads + h;
    A both = 0;  // decay over the whole chunk
    if (has_start_ && has_end_)
      both = steps_.whole[static_cast<std::size_t>(h)] *
             dot(r_ + c0 * z_.state, start_ + c0 * z_.state, z_.head_dim * z_.state);
    A ended = 0, skip_sum = 0;
    for (std::int64_t t = 0; t < n_; ++t) {
      da_[t] += both + ended;
      ended += to_end_[t];
      skip_sum += scores_[t * ld_ + t];
    }
    A started = 0;
    for (std::int64_t t = n_ - 1; t >= 0; --t) {
      started += from_start_[t];
      da_[t] += started;
    }
    const A skip = p_.D.template data<A>()[head];
    T* row = g_.x.row<T>(t0_) + group_ * z_.group_channels + c0;
    for (std::int64_t s = 0; s < n_; ++s, row += g_.x.row_stride()) {
      const A dt = steps_.dt[h * steps_.stride + s];
      const A* __restrict q = q_ + s * z_.group_channels + c0;
      const A* __restrict y = y_ + s * z_.group_channels + c0;
      T* __restrict to = row;
      for (std::int64_t k = 0; k < z_.head_dim; ++k) to[k] = static_cast<T>(dt * q[k] + skip * y[k]);
    }
    g_.D.row<A>(index_)[head] = skip_sum;
    steps_.finish(h, group_, t0_, n_, index_, ddt_, da_, g_);
  }

  /// R of the chunk before; has_start_ holds, so scaled_ is in dY.
  void advance() {
    for (std::int64_t h = 0; h < z_.group_heads; ++h) {
      A* __restrict r = r_ + h * z_.head_dim * z_.state;
      const A whole = steps_.whole[static_cast<std::size_t>(h)];
      for (std::int64_t k = 0; k < z_.head_dim * z_.state; ++k) r[k] *= whole;
    }
    tile_gemm<A, true, false>(z_.group_channels, z_.state, n_, scaled_, z_.group_channels, c_, z_.state, r_,
                              z_.state, true);
  }

  const SsdProblem& p_;
  const SsdGradients& g_;
  const Tensor &dy_, &starts_;
  Sizes z_;
  std::int64_t ld_, size_;  // rounded chunk length; elements of the states of one group
  TimeSteps<T> steps_;
  Scratch<A> memory_;
  A *b_, *c_, *db_, *dc_, *dc_head_;                // [chunk, state]
  A *dots_, *scores_, *mixed_, *paired_;            // B C^T, X dY^T, B C^T * E, P: [chunk, ld], column >= row
  A *x_, *y_;                                       // X, dY [chunk, group_channels]
  A *q_, *scaled_;                                  // Q, and out dt X, then in dY: [chunk, group_channels]
  A* y_turned_;                                     // dY^T of one head [head_dim, ld]
  A* turned_;                                       // C^T [state, ld], then R^T [state, group_channels]
  A* r_;                                            // R [group_channels, state]
  A *before_, *ddt_, *da_, *from_start_, *to_end_;  // [ld]

  // The chunk at hand.
  std::int64_t group_ = 0, index_ = 0, t0_ = 0, n_ = 0;
  std::int64_t next_ = 0;                     // tokens of the chunk before, the next one here
  bool has_start_ = false, has_end_ = false;  // H, R may differ from zero
  const A* start_ = nullptr;                  // H [group_channels, state]
};

}  // namespace

void ssd_chunked_backward(const SsdProblem& problem, const SsdGradients& gradients, const Tensor& dy,
                          const Tensor& chunk_starts) {
  visit_float("ssd_scan", problem.x.dtype(), [&](auto tag) {
    for_sequence_groups(problem, [&] {
      return Backward<typename decltype(tag)::type>(problem, gradients, dy, chunk_starts);
    });
  });
}

}  // namespace nemocube::cpu
