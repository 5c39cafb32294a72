#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/parallel_for.h"
#include "core/tensor.h"
#include "ops/math.h"
#include "ops/prefetch.h"
#include "ops/sequences.h"
#include "ops/ssd_scan/ssd_scan.h"

/// Kernels behind ops/ssd_scan/ssd_scan.h: arguments checked by the caller.
namespace nemocube::cpu {

struct SsdProblem {
  Tensor x, dt_raw, B, C;
  Tensor A_log, D, dt_bias;  // in the accumulation dtype
  Tensor initial_state;      // may be undefined
  SsdOptions options;
  Sequences sequences;

  /// Chunks start afresh at every sequence; the last one of a sequence may be short.
  std::int64_t chunk_length() const;
  std::vector<std::int64_t> first_chunks;  // [sequences + 1], see count_chunks
  void count_chunks();                     // fills first_chunks from sequences and options
  std::int64_t chunks() const { return first_chunks.back(); }
  std::int64_t first_chunk(std::int64_t sequence) const {
    return first_chunks[static_cast<std::size_t>(sequence)];
  }
};

/// What forward writes besides y; each may be undefined.
struct SsdStates {
  Tensor chunk_starts;  // [chunks, heads, head_dim, state_size], read by backward
  Tensor final;         // [sequences, heads, head_dim, state_size]
};

/// Like the inputs, and for the parameters [chunks, heads] in the accumulation dtype: one partial sum for
/// each chunk. All defined.
struct SsdGradients {
  Tensor x, dt_raw, B, C;
  Tensor A_log, D, dt_bias;
};

void ssd_chunked_forward(const SsdProblem& problem, const Tensor& y, const SsdStates& states);
void ssd_chunked_backward(const SsdProblem& problem, const SsdGradients& gradients, const Tensor& dy,
                          const Tensor& chunk_starts);
void ssd_recurrent_forward(const SsdProblem& problem, const Tensor& y, const SsdStates& states);
void ssd_recurrent_backward(const SsdProblem& problem, const SsdGradients& gradients, const Tensor& dy,
                            const Tensor& chunk_starts);

}  // namespace nemocube::cpu

/// Parts shared by the CPU variants of the scan.
namespace nemocube::cpu::ssd {

struct Sizes {
  std::int64_t heads, head_dim, groups, state, chunk;
  std::int64_t group_heads, group_channels;  // heads of one group, and their channels

  explicit Sizes(const SsdProblem& p)
      : heads(p.options.heads),
        head_dim(p.options.head_dim),
        groups(p.options.groups),
        state(p.options.state_size),
        chunk(p.chunk_length()),
        group_heads(heads / groups),
        group_channels(group_heads * head_dim) {}
};

/// Runs fn(sequence, group) for all of them, in parallel. Consecutive items share a group, so that threads
/// get like shares of sequences of unlike length.
template <class Fn>
void for_sequence_groups(const SsdProblem& p, Fn&& make) {
  const std::int64_t count = p.sequences.count();
  parallel_for(count * p.options.groups, 1, [&](std::int64_t begin, std::int64_t end) {
    auto run = make();
    for (std::int64_t i = begin; i < end; ++i) run(i % count, i / count);
  });
}

/// Working memory cut from one cached block, uninitialised, every piece 64-byte aligned.
template <class A>
class Scratch {
 public:
  explicit Scratch(std::int64_t elements) : memory_(Tensor::empty({elements}, dtype_of<A>())) {}
  static std::int64_t rounded(std::int64_t n) { return (n + 15) / 16 * 16; }
  A* take(std::int64_t n) {
    A* piece = memory_.template data<A>() + used_;
    used_ += rounded(n);
    expect(used_ <= memory_.numel(), "ssd_scan: scratch is too small");
    return piece;
  }

 private:
  Tensor memory_;
  std::int64_t used_ = 0;
};

/// Copies columns [c0, c0 + columns) of the n rows of t from row t0 on to `to` [n, columns].
template <class T, class A>
void load(A* __restrict to, const Tensor& t, std::int64_t t0, std::int64_t n, std::int64_t c0,
          std::int64_t columns) {
  const T* from = t.row<T>(t0) + c0;
  for (std::int64_t l = 0; l < n; ++l, from += t.row_stride(), to += columns)
    for (std::int64_t c = 0; c < columns; ++c) to[c] = static_cast<A>(from[c]);
}

/// The reverse of load, rounding to T.
template <class T, class A>
void store(const A* __restrict from, const Tensor& t, std::int64_t t0, std::int64_t n, std::int64_t c0,
           std::int64_t columns) {
  T* to = t.row<T>(t0) + c0;
  for (std::int64_t l = 0; l < n; ++l, to += t.row_stride(), from += columns)
    for (std::int64_t c = 0; c < columns; ++c) to[c] = static_cast<T>(from[c]);
}

/// Brings columns [c0, c0 + columns) of the n rows from row t0 on into the cache, for a chunk to come.
template <class T>
void prefetch_rows(const Tensor& t, std::int64_t t0, std::int64_t n, std::int64_t c0, std::int64_t columns) {
  for (std::int64_t l = 0; l < n; ++l) prefetch(t.row<T>(t0 + l) + c0, columns);
}

template <class A>
A dot(const A* __restrict a, const A* __restrict b, std::int64_t n) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

/// The chunk's token-by-token matrices are triangular; products skip the empty side in blocks of this many
/// rows.
constexpr std::int64_t triangle_rows = 16;

/// Calls fn(r0, r1) for blocks of rows; below and on the diagonal they need columns [0, r1), above and on it
/// [r0, n).
template <class Fn>
void for_row_blocks(std::int64_t n, Fn&& fn) {
  for (std::int64_t r0 = 0; r0 < n; r0 += triangle_rows) fn(r0, std::min(n, r0 + triangle_rows));
}

/// Time steps and decays of one chunk for the heads of one group; rows of `stride` elements, one for a head.
template <class T>
class TimeSteps {
 public:
  using A = acc_t<T>;

  TimeSteps(const SsdProblem& p, const Sizes& sizes)
      : p_(p),
        group_heads_(sizes.group_heads),
        stride(Scratch<A>::rounded(sizes.chunk)),
        memory_((6 * group_heads_ + 1) * stride) {
    for (A** row : {&raw, &dt, &sum, &rest, &in, &out}) *row = memory_.take(group_heads_ * stride);
    place = memory_.take(stride);
    for (std::int64_t l = 0; l < stride; ++l) place[l] = static_cast<A>(l);
    whole.resize(static_cast<std::size_t>(group_heads_));
    rate.resize(static_cast<std::size_t>(group_heads_));
  }

  void fill(std::int64_t group, std::int64_t t0, std::int64_t n) {
    for (std::int64_t h = 0; h < group_heads_; ++h) fill_head(h, group * group_heads_ + h, t0, n);
  }

  /// From the gradients of dt (direct part) and of dt A of head h: writes the gradient of dt_raw and the
  /// chunk's parts of those of dt_bias and A_log.
  void finish(std::int64_t h, std::int64_t group, std::int64_t t0, std::int64_t n, std::int64_t chunk,
              A* __restrict ddt, const A* __restrict da, const SsdGradients& to) const {
    const std::int64_t head = group * group_heads_ + h;
    const A* __restrict v = raw + h * stride;
    const A* __restrict d = dt + h * stride;
    const A low = static_cast<A>(p_.options.dt_min), high = static_cast<A>(p_.options.dt_max);
    const A a = rate[static_cast<std::size_t>(h)];
    A decay = 0, bias = 0;
    for (std::int64_t l = 0; l < n; ++l) {
      const A s = softplus(v[l]);
      const A g = s >= low && s <= high ? (ddt[l] + a * da[l]) * softplus_grad(v[l]) : A(0);
      ddt[l] = g;
    }
    T* raw_gradient = to.dt_raw.row<T>(t0) + head;
    for (std::int64_t l = 0; l < n; ++l) {
      decay += da[l] * d[l];
      bias += ddt[l];
      raw_gradient[l * to.dt_raw.row_stride()] = static_cast<T>(ddt[l]);
    }
    to.A_log.row<A>(chunk)[head] = a * decay;
    to.dt_bias.row<A>(chunk)[head] = bias;
  }

 private:
  const SsdProblem& p_;
  std::int64_t group_heads_;

 public:
  std::int64_t stride;
  A* place;  // 0, 1, 2, ...: masks compare data; by index the compiler cuts the loop in two scalar ones
  A* raw;    // dt_raw + dt_bias
  A* dt;     // after softplus and limits
  A* sum;    // inclusive sum of dt A within the chunk, and
  A* rest;   // what rounding it to A lost: differences of sums of very unlike steps stay accurate
  A* in;     // e^sum: decay from the start of the chunk through token l
  A* out;    // decay from token l to the end of the chunk
  std::vector<A> whole;  // decay over the chunk
  std::vector<A> rate;   // A

 private:
  Scratch<A> memory_;

  void fill_head(std::int64_t h, std::int64_t head, std::int64_t t0, std::int64_t n) {
    const A bias = p_.dt_bias.template data<A>()[head];
    const A a = -std::exp(p_.A_log.template data<A>()[head]);
    const A low = static_cast<A>(p_.options.dt_min), high = static_cast<A>(p_.options.dt_max);
    A* __restrict v = raw + h * stride;
    A* __restrict d = dt + h * stride;
    A* __restrict s = sum + h * stride;
    A* __restrict r = rest + h * stride;
    A* __restrict i = in + h * stride;
    A* __restrict o = out + h * stride;
    const T* from = p_.dt_raw.row<T>(t0) + head;
    for (std::int64_t l = 0; l < n; ++l) v[l] = static_cast<A>(from[l * p_.dt_raw.row_stride()]) + bias;
    for (std::int64_t l = 0; l < n; ++l) {
      const A soft = softplus(v[l]);
      const A above = soft < low ? low : soft;
      d[l] = above > high ? high : above;
    }
    double total = 0;
    for (std::int64_t l = 0; l < n; ++l) {
      total += static_cast<double>(d[l]) * static_cast<double>(a);
      s[l] = static_cast<A>(total);
      r[l] = static_cast<A>(total - static_cast<double>(s[l]));
    }
    const A end = s[n - 1], end_rest = r[n - 1];
    for (std::int64_t l = 0; l < n; ++l) i[l] = vec_exp(s[l]);
    for (std::int64_t l = 0; l < n; ++l) o[l] = vec_exp((end - s[l]) + (end_rest - r[l]));
    for (std::int64_t l = n; l < stride; ++l) s[l] = r[l] = A(0);
    whole[static_cast<std::size_t>(h)] = i[n - 1];
    rate[static_cast<std::size_t>(h)] = a;
  }
};

}  // namespace nemocube::cpu::ssd
