#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/parallel_for.h"
#include "ops/math.h"
#include "ops/ssd_scan/ssd_scan_kernels.h"
#include "ops/tile_matrix.h"

/// Parts shared by the CPU variants of the scan. A kernel works on one sequence and one group of heads at a
/// time, chunk by chunk. The heads of a group read the same B and C; their channels lie side by side.
namespace nemocube::cpu::ssd {

using namespace tiles;

struct Sizes {
  std::int64_t heads, head_dim, state;
  std::int64_t group_heads, group_channels;  // heads of one group, and their channels
  std::int64_t chunk, padded_chunk;          // tokens of a whole chunk

  explicit Sizes(const SsdProblem& p)
      : heads(p.options.heads),
        head_dim(p.options.head_dim),
        state(p.options.state_size),
        group_heads(heads / p.options.groups),
        group_channels(group_heads * head_dim),
        chunk(p.chunks.length),
        padded_chunk(padded(chunk)) {}
};

/// The tokens [t0, t0 + n) of one chunk, and the group that works on them.
struct ChunkPart {
  std::int64_t group = 0;
  std::int64_t index = 0;  // of the chunk, among the chunks of all sequences
  std::int64_t t0 = 0, n = 0;
};

/// The states of one group's heads, [group_channels, state], at `index` of a tensor [.., heads, head_dim,
/// state].
template <class A>
Matrix<A> group_states(const Tensor& states, std::int64_t index, std::int64_t group, const Sizes& z) {
  const std::int64_t channel = index * z.heads * z.head_dim + group * z.group_channels;
  return {states.data<A>() + channel * z.state, z.group_channels, z.state, z.state};
}

/// Time steps and decays of one head within a chunk, a value for each token l. a_l = dt_l A is the logarithm
/// of the decay of the state between the tokens l - 1 and l.
template <class A>
struct HeadDecays {
  A* dt_raw;       // with dt_bias
  A* dt;           // after softplus and limits
  A* cumsum;       // a_0 + .. + a_l, formed in f64
  A* cumsum_rest;  // the rounding error of cumsum; keeps differences accurate when steps differ widely
  A* from_start;   // e^(a_0 + .. + a_l): factor on the state at the start of the chunk, at token l
  A* to_end;       // e^(a_(l+1) + .. + a_(n-1)): factor on token l's part of the state at the end
  A whole;         // decay over the chunk
  A rate;          // A
};

/// Decays of the heads of one group within one chunk, and the step of backward from decays to the inputs.
template <class T>
class ChunkDecays {
 public:
  using A = acc_t<T>;

  ChunkDecays(const SsdProblem& p, const Sizes& z)
      : p_(p),
        heads_(z.group_heads),
        memory_({{dt_raw_, heads_, z.padded_chunk},
                 {dt_, heads_, z.padded_chunk},
                 {cumsum_, heads_, z.padded_chunk},
                 {cumsum_rest_, heads_, z.padded_chunk},
                 {from_start_, heads_, z.padded_chunk},
                 {to_end_, heads_, z.padded_chunk},
                 {whole_, 1, heads_},
                 {rate_, 1, heads_},
                 {token_, 1, z.padded_chunk}}) {
    for (std::int64_t l = 0; l < z.padded_chunk; ++l) token_.data[l] = static_cast<A>(l);
  }

  void compute(const ChunkPart& at) {
    for (std::int64_t h = 0; h < heads_; ++h) {
      const std::int64_t head = at.group * heads_ + h;
      rate_.data[h] = -std::exp(p_.A_log.template data<A>()[head]);
      HeadDecays<A> d = this->head(h);
      time_steps(d, at, head);
      decays(d, at.n);
      whole_.data[h] = d.from_start[at.n - 1];
    }
  }

  HeadDecays<A> head(std::int64_t h) const {
    return {dt_raw_.row(h),     dt_.row(h),     cumsum_.row(h), cumsum_rest_.row(h),
            from_start_.row(h), to_end_.row(h), whole_.data[h], rate_.data[h]};
  }

  /// The token numbers 0, 1, 2, ... as values in memory. The compiler turns a loop that compares two of these
  /// values into vector instructions with masks. It would split a loop that compares loop counters.
  const A* token_numbers() const { return token_.data; }

  /// For head h of the group, writes the gradient of dt_raw and the chunk's partial sums of the gradients of
  /// dt_bias and A_log. `ddt` is the gradient of dt as the factor of x, `da` the gradient of a. Overwrites
  /// ddt.
  void write_gradients(const SsdGradients& to, const ChunkPart& at, std::int64_t h, A* __restrict ddt,
                       const A* __restrict da) const {
    const std::int64_t head = at.group * heads_ + h;
    const A* __restrict v = dt_raw_.row(h);
    const A* __restrict dt = dt_.row(h);
    const A low = static_cast<A>(p_.options.dt_min), high = static_cast<A>(p_.options.dt_max);
    const A rate = rate_.data[h];
    const std::int64_t n = at.n;
    A decay = 0, bias = 0;
    for (std::int64_t l = 0; l < n; ++l) {
      const A s = softplus(v[l]);
      const A g = s >= low && s <= high ? (ddt[l] + rate * da[l]) * softplus_grad(v[l]) : A(0);
      ddt[l] = g;
    }
    T* raw_gradient = to.dt_raw.row<T>(at.t0) + head;
    for (std::int64_t l = 0; l < n; ++l) {
      decay += da[l] * dt[l];
      bias += ddt[l];
      raw_gradient[l * to.dt_raw.row_stride()] = static_cast<T>(ddt[l]);
    }
    to.A_log.row<A>(at.index)[head] = rate * decay;
    to.dt_bias.row<A>(at.index)[head] = bias;
  }

 private:
  void time_steps(const HeadDecays<A>& to, const ChunkPart& at, std::int64_t head) const {
    const A bias = p_.dt_bias.template data<A>()[head];
    const A low = static_cast<A>(p_.options.dt_min), high = static_cast<A>(p_.options.dt_max);
    A* __restrict v = to.dt_raw;
    A* __restrict dt = to.dt;
    const T* from = p_.dt_raw.row<T>(at.t0) + head;
    for (std::int64_t l = 0; l < at.n; ++l) v[l] = static_cast<A>(from[l * p_.dt_raw.row_stride()]) + bias;
    for (std::int64_t l = 0; l < at.n; ++l) {
      const A soft = softplus(v[l]);
      const A above = soft < low ? low : soft;
      dt[l] = above > high ? high : above;
    }
  }

  void decays(const HeadDecays<A>& to, std::int64_t n) const {
    const A* __restrict dt = to.dt;
    A* __restrict s = to.cumsum;
    A* __restrict r = to.cumsum_rest;
    A* __restrict i = to.from_start;
    A* __restrict o = to.to_end;
    double total = 0;
    for (std::int64_t l = 0; l < n; ++l) {
      total += static_cast<double>(dt[l]) * static_cast<double>(to.rate);
      s[l] = static_cast<A>(total);
      r[l] = static_cast<A>(total - static_cast<double>(s[l]));
    }
    const A end = s[n - 1], end_rest = r[n - 1];
    for (std::int64_t l = 0; l < n; ++l) i[l] = vec_exp(s[l]);
    for (std::int64_t l = 0; l < n; ++l) o[l] = vec_exp((end - s[l]) + (end_rest - r[l]));
    for (std::int64_t l = n; l < cumsum_.cols; ++l) s[l] = r[l] = A(0);
  }

  const SsdProblem& p_;
  std::int64_t heads_;
  Matrix<A> dt_raw_, dt_, cumsum_, cumsum_rest_, from_start_,
      to_end_;              // [heads, padded chunk], see HeadDecays
  Matrix<A> whole_, rate_;  // [1, heads]
  Matrix<A> token_;         // [1, padded chunk]
  Workspace<A> memory_;
};

/// Runs kernel(sequence, group) for every sequence and group, in parallel. make(TypeTag<T>{}), T the type of
/// x, makes a kernel for each thread. Consecutive items share a group, so that threads get similar shares of
/// work when sequences differ in length.
template <class Make>
void run_kernels(const SsdProblem& p, Make&& make) {
  visit_float("ssd_scan", p.x.dtype(), [&](auto tag) {
    const std::int64_t count = p.sequences.count();
    parallel_for(count * p.options.groups, 1, [&](std::int64_t begin, std::int64_t end) {
      auto kernel = make(tag);
      for (std::int64_t i = begin; i < end; ++i) kernel(i % count, i / count);
    });
  });
}

}  // namespace nemocube::cpu::ssd
