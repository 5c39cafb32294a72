#include <algorithm>

#include "ops/ssd_scan/ssd_scan_kernels.h"
#include "ops/tile.h"
#include "ops/transpose.h"

/// Forward of one chunk of n tokens, for the heads of one group side by side (group_channels of them):
///   Y = (C H^T) in + (C B^T * L) dt X + D X,    H' = whole H + (out dt X)^T B
/// with L[l, s] the decay from token s to token l, zero for s > l.
namespace nemocube::cpu {

std::int64_t SsdProblem::chunk_length() const {
  // Longer chunks spend more on the squares of tokens than they save on states: chunks of 128 took 12 %
  // longer than 32 or 64 (which tie), forward and backward, 4 x 512 tokens, 16 heads of 64, state 64, f32,
  // Zen 4.
  constexpr std::int64_t longest_useful = 64;
  return std::clamp<std::int64_t>(sequences.longest(), 1, std::min(options.chunk_size, longest_useful));
}

void SsdProblem::count_chunks() {
  const std::int64_t q = chunk_length();
  first_chunks.assign(1, 0);
  for (std::int64_t i = 0; i < sequences.count(); ++i)
    first_chunks.push_back(first_chunks.back() + (sequences.length(i) + q - 1) / q);
}

namespace {

using namespace ssd;

/// Row l of mixed = dots * L, zero right of the diagonal as far as the products read it.
template <class A>
void mix_row(A* __restrict mixed, const A* __restrict dots, const A* __restrict sum, const A* __restrict rest,
             const A* __restrict place, std::int64_t l, std::int64_t columns) {
  const A here = sum[l], here_rest = rest[l], here_place = place[l];
  for (std::int64_t s = 0; s < columns; ++s) {
    const A span = (here - sum[s]) + (here_rest - rest[s]);
    const A decay = vec_exp(span > 0 ? A(0) : span);  // right of the diagonal e^span may overflow
    mixed[s] = place[s] <= here_place ? dots[s] * decay : A(0);
  }
}

template <class T>
class Forward {
 public:
  using A = acc_t<T>;

  Forward(const SsdProblem& p, const Tensor& y, const SsdStates& states)
      : p_(p),
        y_(y),
        states_(states),
        z_(p),
        ld_(Scratch<A>::rounded(z_.chunk)),
        size_(z_.group_channels * z_.state),
        steps_(p, z_),
        memory_(3 * ld_ * z_.state + 2 * ld_ * ld_ + 2 * ld_ * z_.group_channels + 2 * size_ + 16 * 8),
        b_(memory_.take(ld_ * z_.state)),
        c_(memory_.take(ld_ * z_.state)),
        dots_(memory_.take(ld_ * ld_)),
        mixed_(memory_.take(ld_ * ld_)),
        dtx_(memory_.take(ld_ * z_.group_channels)),
        sum_(memory_.take(ld_ * z_.group_channels)),
        turned_(memory_.take(std::max(ld_ * z_.state, size_))),
        state_(memory_.take(size_)) {}

  void operator()(std::int64_t sequence, std::int64_t group) {
    const std::int64_t begin = p_.sequences.begin(sequence), end = p_.sequences.end(sequence);
    const std::int64_t offset = group * size_, all = z_.heads * z_.head_dim * z_.state;
    const bool keeps = states_.chunk_starts.defined();
    A* start = state_;
    if (keeps) start = states_.chunk_starts.template data<A>() + p_.first_chunk(sequence) * all + offset;
    if (begin == end) start = state_;
    bool zero = true;  // the state, so far
    if (p_.initial_state.defined()) {
      std::copy_n(p_.initial_state.template data<A>() + sequence * all + offset, size_, start);
      zero = false;
    } else {
      std::fill_n(start, size_, A(0));
    }
    for (std::int64_t t0 = begin; t0 < end; t0 += z_.chunk) {
      const std::int64_t n = std::min(z_.chunk, end - t0);
      next_ = std::min(z_.chunk, end - t0 - n);
      chunk(group, t0, n, start, zero);
      const bool more = t0 + n < end;
      if (more || states_.final.defined()) {
        A* next = keeps && more ? start + all : state_;
        advance(start, next, n);
        start = next;
      }
      zero = false;
    }
    if (states_.final.defined())
      std::copy_n(start, size_, states_.final.template data<A>() + sequence * all + offset);
  }

 private:
  void chunk(std::int64_t group, std::int64_t t0, std::int64_t n, const A* start, bool zero) {
    steps_.fill(group, t0, n);
    load<T>(b_, p_.B, t0, n, group * z_.state, z_.state);
    load<T>(c_, p_.C, t0, n, group * z_.state, z_.state);
    transpose(turned_, ld_, b_, z_.state, n, z_.state);
    for_row_blocks(n, [&](std::int64_t r0, std::int64_t r1) {
      tile_gemm<A, false, false>(r1 - r0, r1, z_.state, c_ + r0 * z_.state, z_.state, turned_, ld_,
                                 dots_ + r0 * ld_, ld_, false);
    });
    if (!zero) {
      transpose(turned_, z_.group_channels, start, z_.state, z_.group_channels, z_.state);
      tile_gemm<A, false, false>(n, z_.group_channels, z_.state, c_, z_.state, turned_, z_.group_channels,
                                 sum_, z_.group_channels, false);
    }
    prefetch_rows<T>(p_.B, t0 + n, next_, group * z_.state, z_.state);
    prefetch_rows<T>(p_.C, t0 + n, next_, group * z_.state, z_.state);
    for (std::int64_t h = 0; h < z_.group_heads; ++h) {
      prefetch_rows<T>(p_.x, t0 + n, next_, group * z_.group_channels + h * z_.head_dim, z_.head_dim);
      prefetch_rows<T>(y_, t0 + n, next_, group * z_.group_channels + h * z_.head_dim, z_.head_dim);
      scale_inputs(group, h, t0, n, zero);
      mix(h, n);
      A* x = dtx_ + h * z_.head_dim;
      A* y = sum_ + h * z_.head_dim;
      for_row_blocks(n, [&](std::int64_t r0, std::int64_t r1) {
        tile_gemm<A, false, false>(r1 - r0, z_.head_dim, r1, mixed_ + r0 * ld_, ld_, x, z_.group_channels,
                                   y + r0 * z_.group_channels, z_.group_channels, true);
      });
    }
    store<T>(sum_, y_, t0, n, group * z_.group_channels, z_.group_channels);
  }

  /// dt X, and the part of Y that comes from the state and from D.
  void scale_inputs(std::int64_t group, std::int64_t h, std::int64_t t0, std::int64_t n, bool zero) {
    const std::int64_t c0 = h * z_.head_dim;
    const A skip = p_.D.template data<A>()[group * z_.group_heads + h];
    const T* row = p_.x.row<T>(t0) + group * z_.group_channels + c0;
    for (std::int64_t l = 0; l < n; ++l, row += p_.x.row_stride()) {
      const T* __restrict x = row;
      A* __restrict dtx = dtx_ + l * z_.group_channels + c0;
      A* __restrict y = sum_ + l * z_.group_channels + c0;
      const A dt = steps_.dt[h * steps_.stride + l], in = steps_.in[h * steps_.stride + l];
      if (zero) std::fill_n(y, z_.head_dim, A(0));
      for (std::int64_t q = 0; q < z_.head_dim; ++q) {
        const A v = static_cast<A>(x[q]);
        dtx[q] = dt * v;
        y[q] = in * y[q] + skip * v;
      }
    }
  }

  void mix(std::int64_t h, std::int64_t n) {
    const A* sum = steps_.sum + h * steps_.stride;
    const A* rest = steps_.rest + h * steps_.stride;
    for_row_blocks(n, [&](std::int64_t r0, std::int64_t r1) {
      for (std::int64_t l = r0; l < r1; ++l)
        mix_row(mixed_ + l * ld_, dots_ + l * ld_, sum, rest, steps_.place, l, Scratch<A>::rounded(r1));
    });
  }

  /// `from` and `to` may be the same.
  void advance(const A* from, A* to, std::int64_t n) {
    for (std::int64_t h = 0; h < z_.group_heads; ++h) {
      const A* out = steps_.out + h * steps_.stride;
      for (std::int64_t l = 0; l < n; ++l) {
        A* __restrict x = dtx_ + l * z_.group_channels + h * z_.head_dim;
        for (std::int64_t q = 0; q < z_.head_dim; ++q) x[q] *= out[l];
      }
      const A whole = steps_.whole[static_cast<std::size_t>(h)];
      const std::int64_t size = z_.head_dim * z_.state;
      for (std::int64_t k = h * size; k < (h + 1) * size; ++k) to[k] = whole * from[k];
    }
    tile_gemm<A, true, false>(z_.group_channels, z_.state, n, dtx_, z_.group_channels, b_, z_.state, to,
                              z_.state, true);
  }

  const SsdProblem& p_;
  const Tensor& y_;
  const SsdStates& states_;
  Sizes z_;
  std::int64_t ld_, size_;  // rounded chunk length; elements of the states of one group
  TimeSteps<T> steps_;
  Scratch<A> memory_;
  A *b_, *c_;              // [chunk, state]
  A* dots_;                // C B^T [chunk, ld]
  A* mixed_;               // the same times L, for one head
  A* dtx_;                 // dt X [chunk, group_channels]
  A* sum_;                 // Y [chunk, group_channels]
  A* turned_;              // B^T [state, ld], then H^T [state, group_channels]
  A* state_;               // H [group_channels, state]
  std::int64_t next_ = 0;  // rows of the next chunk
};

}  // namespace

void ssd_chunked_forward(const SsdProblem& problem, const Tensor& y, const SsdStates& states) {
  visit_float("ssd_scan", problem.x.dtype(), [&](auto tag) {
    for_sequence_groups(problem, [&] { return Forward<typename decltype(tag)::type>(problem, y, states); });
  });
}

}  // namespace nemocube::cpu
