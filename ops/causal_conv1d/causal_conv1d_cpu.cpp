#include "ops/causal_conv1d/causal_conv1d_kernels.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "core/parallel_for.h"
#include "ops/math.h"
#include "ops/prefetch.h"
#include "ops/reduce.h"
#include "ops/reduce_kernels.h"

namespace nemocube::cpu {
namespace {

/// Columns handled together, so that the rows, taps and sums of a quad stay in the first-level cache.
constexpr std::int64_t block_columns = 256;

/// Tokens formed together when K = 4: each value of x, tap and sum is then loaded once for all of them.
constexpr int quad = 4;

/// A run of rows [first, last) within one sequence [begin, end).
struct Piece {
  std::int64_t sequence, begin, end, first, last;
};

template <class Fn>
void for_pieces(const SequenceTable& sequences, std::int64_t first, std::int64_t last, Fn&& fn) {
  const auto* offsets = sequences.offsets.data<std::int64_t>();
  std::int64_t i = std::upper_bound(offsets, offsets + sequences.offsets.numel(), first) - offsets - 1;
  while (first < last) {
    const std::int64_t stop = std::min(last, sequences.end(i));
    if (first < stop) fn(Piece{i, sequences.begin(i), sequences.end(i), first, stop});
    first = stop;
    ++i;
  }
}

/// Base pointer and stride of a tensor's rows. Tensor::row would check the dtype on every call.
template <class T>
struct Rows {
  T* data = nullptr;
  std::int64_t stride = 0;
  Rows() = default;
  explicit Rows(const Tensor& t) {
    if (!t.defined()) return;
    data = t.data<T>();
    stride = t.row_stride();
  }
  T* operator[](std::int64_t r) const { return data + r * stride; }
  explicit operator bool() const { return data != nullptr; }
};

template <class T>
class Conv {
 public:
  using A = acc_t<T>;

  explicit Conv(const ConvInputs& in)
      : sequences_(in.sequences),
        x_(in.x),
        state_(in.initial_state),
        channels_(in.x.cols()),
        taps_(in.weight.cols()),
        weight_(at(channels_ * taps_)),
        bias_(at(channels_)) {
    const Tensor w = in.weight.to(dtype_of<A>()).as_contiguous();
    const A* from = w.template data<A>();
    for (std::int64_t c = 0; c < channels_; ++c)
      for (std::int64_t k = 0; k < taps_; ++k) weight_[at(k * channels_ + c)] = from[c * taps_ + k];
    if (!in.bias.defined()) return;
    const Tensor b = in.bias.to(dtype_of<A>());
    std::copy_n(b.template data<A>(), channels_, bias_.begin());
  }

  void forward(const Tensor& y) const {
    const Rows<T> to_rows(y);
    parallel_for(y.rows(), 1 + 4096 / (channels_ + 1), [&](std::int64_t begin, std::int64_t end) {
      for_pieces(sequences_, begin, end, [&](const Piece& piece) {
        for_rows(piece, piece.last, [&](std::int64_t t, auto count) {
          for (std::int64_t c0 = 0; c0 < channels_; c0 += block_columns) {
            const std::int64_t n = std::min(block_columns, channels_ - c0);
            for (std::int64_t next = t + count; next < std::min(t + 2 * count, piece.last); ++next) {
              prefetch(x_[next] + c0, n);
              prefetch(to_rows[next] + c0, n);
            }
            A c[count * block_columns];
            convolve(count, c, piece, t, c0, n);
            for (int r = 0; r < count; ++r) {
              T* __restrict to = to_rows[t + r] + c0;
              for (std::int64_t j = 0; j < n; ++j) to[j] = static_cast<T>(silu(c[r * block_columns + j]));
            }
          }
        });
      });
    });
  }

  void backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy) const {
    const Rows<T> dx_rows(dx), dy_rows(dy);
    const bool sums_wanted = dweight.defined() || dbias.defined();
    constexpr std::int64_t b = block_columns;
    for_segments(dy.rows(), [&](std::int64_t segment, std::int64_t first, std::int64_t last) {
      std::vector<A> du(at((last - first + taps_ - 1) * b)), sums(at((taps_ + 1) * b));
      for (std::int64_t c0 = 0; c0 < channels_; c0 += b) {
        const std::int64_t n = std::min(b, channels_ - c0);
        std::ranges::fill(sums, A(0));
        for_pieces(sequences_, first, last, [&](const Piece& piece) {
          const auto du_row = [&](std::int64_t t) { return &du[at((t - piece.first) * b)]; };
          // The dx of the last rows needs the du of up to K - 1 rows of the next segment.
          const std::int64_t stop = dx_rows ? std::min(piece.last + taps_ - 1, piece.end) : piece.last;
          for_rows(piece, stop, [&](std::int64_t t, auto count) {
            for (std::int64_t next = t + count; next < std::min(t + 2 * count, stop); ++next) {
              prefetch(x_[next] + c0, n);
              prefetch(dy_rows[next] + c0, n);
              if (dx_rows && next < piece.last) prefetch(dx_rows[next] + c0, n);
            }
            convolve(count, du_row(t), piece, t, c0, n);
            for (int r = 0; r < count; ++r) {
              const T* __restrict g = dy_rows[t + r] + c0;
              A* __restrict c = du_row(t + r);
              for (std::int64_t j = 0; j < n; ++j) c[j] = static_cast<A>(g[j]) * silu_grad(c[j]);
            }
          });
          if (sums_wanted)
            for_rows(piece, piece.last, [&](std::int64_t t, auto count) {
              add_sums(count, sums.data(), du_row(t), piece, t, c0, n);
            });
          if (!dx_rows) return;
          for (std::int64_t t = piece.first; t < piece.last; ++t)
            spread(dx_rows[t] + c0, du_row(t), std::min(taps_, stop - t), c0, n);
        });
        if (dweight.defined()) {
          A* to = dweight.row<A>(segment) + c0 * taps_;
          for (std::int64_t j = 0; j < n; ++j)
            for (std::int64_t k = 0; k < taps_; ++k) to[j * taps_ + k] = sums[at(k * b + j)];
        }
        if (dbias.defined()) std::copy_n(&sums[at(taps_ * b)], n, dbias.row<A>(segment) + c0);
      }
    });
  }

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

  template <int n>
  using Count = std::integral_constant<int, n>;

  /// Calls fn(t, count) for the rows [piece.first, stop), a quad at a time where K = 4 and all taps lie on
  /// tokens of the sequence, else one by one.
  template <class Fn>
  void for_rows(const Piece& piece, std::int64_t stop, Fn&& fn) const {
    std::int64_t t = piece.first;
    while (t < stop)
      if (taps_ == quad && t - piece.begin >= quad - 1 && t + quad <= stop) {
        fn(t, Count<quad>());
        t += quad;
      } else {
        fn(t, Count<1>());
        ++t;
      }
  }

  /// Calls fn(k, row) for every tap k that lies on a token or on the initial state; row points to the columns
  /// from c0 on of that token (T) or of that row of the state (A).
  template <class Fn>
  void for_taps(const Piece& piece, std::int64_t t, std::int64_t c0, Fn&& fn) const {
    const std::int64_t before = t - piece.begin;  // tokens of this sequence to the left of t
    for (std::int64_t k = 0; k < taps_; ++k) {
      const std::int64_t p = before - (taps_ - 1) + k;
      if (p >= 0)
        fn(k, x_[piece.begin + p] + c0);
      else if (state_)
        fn(k, state_[piece.sequence * (taps_ - 1) + taps_ - 1 + p] + c0);
    }
  }

  /// sum [block] = the convolution at token t, before SiLU. For a quad: sum [quad, block], from token t on.
  void convolve(Count<1>, A* __restrict sum, const Piece& piece, std::int64_t t, std::int64_t c0,
                std::int64_t n) const {
    std::copy_n(bias_.data() + c0, n, sum);
    for_taps(piece, t, c0, [&](std::int64_t k, const auto* __restrict v) {
      const A* __restrict w = &weight_[at(k * channels_ + c0)];
      for (std::int64_t j = 0; j < n; ++j) sum[j] += w[j] * static_cast<A>(v[j]);
    });
  }

  void convolve(Count<quad>, A* __restrict sum, const Piece&, std::int64_t t, std::int64_t c0,
                std::int64_t n) const {
    const T* __restrict x = x_[t - quad + 1] + c0;
    const A* __restrict b = bias_.data() + c0;
    const A* __restrict w = weight_.data() + c0;
    const std::int64_t row = x_.stride;
    for (std::int64_t j = 0; j < n; ++j) {
#pragma GCC unroll 4
      for (int r = 0; r < quad; ++r) {
        A s = b[j];
#pragma GCC unroll 4
        for (int k = 0; k < quad; ++k) s += w[k * channels_ + j] * static_cast<A>(x[(r + k) * row + j]);
        sum[r * block_columns + j] = s;
      }
    }
  }

  /// sums [K + 1, block]: the sum for dweight of each tap, then the sum for dbias.
  void add_sums(Count<1>, A* __restrict sums, const A* __restrict du, const Piece& piece, std::int64_t t,
                std::int64_t c0, std::int64_t n) const {
    for_taps(piece, t, c0, [&](std::int64_t k, const auto* __restrict v) {
      for (std::int64_t j = 0; j < n; ++j) sums[k * block_columns + j] += du[j] * static_cast<A>(v[j]);
    });
    for (std::int64_t j = 0; j < n; ++j) sums[taps_ * block_columns + j] += du[j];
  }

  void add_sums(Count<quad>, A* __restrict sums, const A* __restrict du, const Piece&, std::int64_t t,
                std::int64_t c0, std::int64_t n) const {
    constexpr std::int64_t b = block_columns;
    const T* __restrict x = x_[t - quad + 1] + c0;
    const std::int64_t row = x_.stride;
    for (std::int64_t j = 0; j < n; ++j) {
      A all = sums[quad * b + j];
#pragma GCC unroll 4
      for (int r = 0; r < quad; ++r) all += du[r * b + j];
      sums[quad * b + j] = all;
#pragma GCC unroll 4
      for (int k = 0; k < quad; ++k) {
        A sum = sums[k * b + j];
#pragma GCC unroll 4
        for (int r = 0; r < quad; ++r) sum += du[r * b + j] * static_cast<A>(x[(r + k) * row + j]);
        sums[k * b + j] = sum;
      }
    }
  }

  /// dx of one row, from du of this row and of the `rows` - 1 rows after it.
  void spread(T* __restrict to, const A* __restrict du, std::int64_t rows, std::int64_t c0,
              std::int64_t n) const {
    constexpr std::int64_t b = block_columns;
    const A* __restrict w = weight_.data() + c0;
    if (taps_ == quad && rows == quad) {
      for (std::int64_t j = 0; j < n; ++j) {
        A sum = w[3 * channels_ + j] * du[j];
        sum += w[2 * channels_ + j] * du[b + j];
        sum += w[channels_ + j] * du[2 * b + j];
        to[j] = static_cast<T>(sum + w[j] * du[3 * b + j]);
      }
      return;
    }
    A sum[block_columns] = {};
    for (std::int64_t ahead = 0; ahead < rows; ++ahead)
      for (std::int64_t j = 0; j < n; ++j)
        sum[j] += w[(taps_ - 1 - ahead) * channels_ + j] * du[ahead * b + j];
    for (std::int64_t j = 0; j < n; ++j) to[j] = static_cast<T>(sum[j]);
  }

  const SequenceTable& sequences_;
  Rows<T> x_;
  Rows<A> state_;
  std::int64_t channels_, taps_;
  std::vector<A> weight_, bias_;  // weight_ is [K, C]
};

template <class T>
void fill_final_state(const Tensor& state, const ConvInputs& in) {
  using A = acc_t<T>;
  const std::int64_t kept = state.dim(1), channels = state.cols();
  for (std::int64_t i = 0; i < in.sequences.count(); ++i)
    for (std::int64_t j = 0; j < kept; ++j) {
      const std::int64_t p = in.sequences.length(i) - kept + j;  // position in the sequence, or left of it
      A* to = state.row<A>(i * kept + j);
      if (p >= 0) {
        const T* from = in.x.row<T>(in.sequences.begin(i) + p);
        for (std::int64_t c = 0; c < channels; ++c) to[c] = static_cast<A>(from[c]);
      } else if (in.initial_state.defined()) {
        std::copy_n(in.initial_state.row<A>(i * kept + kept + p), channels, to);
      } else {
        std::fill_n(to, channels, A(0));
      }
    }
}

}  // namespace

void causal_conv1d_forward(const Tensor& y, const ConvInputs& in) {
  visit_float("causal_conv1d_silu", in.x.dtype(), [&]<class T>(TypeTag<T>) { Conv<T>(in).forward(y); });
}

void causal_conv1d_final_state(const Tensor& state, const ConvInputs& in) {
  visit_float("causal_conv1d_silu", in.x.dtype(),
              [&]<class T>(TypeTag<T>) { fill_final_state<T>(state, in); });
}

void causal_conv1d_backward(const Tensor& dx, const Output& dweight, const Output& dbias, const Tensor& dy,
                            const ConvInputs& in) {
  visit_float("causal_conv1d_silu", in.x.dtype(), [&]<class T>(TypeTag<T>) {
    // One partial sum for each segment.
    const auto partial = [&](const Output& sum) {
      if (!sum.to) return Tensor();
      return Tensor::empty({segments_of(dy.rows()), sum.to.numel()}, dtype_of<acc_t<T>>(), Device::cpu);
    };
    const Tensor dw = partial(dweight), db = partial(dbias);
    Conv<T>(in).backward(dx, dw, db, dy);
    SegmentSums sums;
    if (dw) sums.push_back({dweight, dw});
    if (db) sums.push_back({dbias, db});
    cpu::sum_segments(sums);
  });
}

}  // namespace nemocube::cpu
