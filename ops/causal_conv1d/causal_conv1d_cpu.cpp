#include "ops/causal_conv1d/causal_conv1d_cpu.h"

#include <algorithm>
#include <vector>

#include "core/parallel_for.h"
#include "ops/math.h"
#include "ops/reduce.h"

namespace nemocube::cpu {
namespace {

/// Columns handled together: K rows, the taps and the sums of a block stay in the first-level cache.
constexpr std::int64_t block_columns = 512;

/// A run of rows [first, last) within one sequence [begin, end).
struct Piece {
  std::int64_t sequence, begin, end, first, last;
};

template <class Fn>
void for_pieces(const Sequences& sequences, std::int64_t first, std::int64_t last, Fn&& fn) {
  const auto at = std::ranges::upper_bound(sequences.offsets, first);
  std::int64_t i = (at - sequences.offsets.begin()) - 1;
  while (first < last) {
    const std::int64_t stop = std::min(last, sequences.end(i));
    if (first < stop) fn(Piece{i, sequences.begin(i), sequences.end(i), first, stop});
    first = stop;
    ++i;
  }
}

/// Base pointer and stride of a tensor's rows; Tensor::row checks its dtype on every call.
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
void prefetch(const T* row, std::int64_t n) {
  for (std::int64_t j = 0; j < n; j += 64 / static_cast<std::int64_t>(sizeof(T))) __builtin_prefetch(row + j);
}

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
        for (std::int64_t t = piece.first; t < piece.last; ++t)
          for (std::int64_t c0 = 0; c0 < channels_; c0 += block_columns) {
            const std::int64_t n = std::min(block_columns, channels_ - c0);
            convolve(to_rows[t] + c0, piece, t, c0, n, [](std::int64_t, A c) { return silu(c); });
          }
      });
    });
  }

  void backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy) const {
    const Rows<T> dx_rows(dx), dy_rows(dy);
    const bool sums_wanted = dweight.defined() || dbias.defined();
    for_segments(dy.rows(), [&](std::int64_t segment, std::int64_t first, std::int64_t last) {
      std::vector<A> ring(at(taps_ * block_columns)), sums(at((taps_ + 1) * block_columns));
      for (std::int64_t c0 = 0; c0 < channels_; c0 += block_columns) {
        const std::int64_t n = std::min(block_columns, channels_ - c0);
        std::ranges::fill(sums, A(0));
        for_pieces(sequences_, first, last, [&](const Piece& piece) {
          // dx of the last rows needs du of up to K - 1 rows that belong to the next segment.
          const std::int64_t stop = dx_rows ? std::min(piece.last + taps_ - 1, piece.end) : piece.last;
          for (std::int64_t t = piece.first; t < stop; ++t) {
            if (t + 1 < stop) {
              prefetch(x_[t + 1] + c0, n);
              prefetch(dy_rows[t + 1] + c0, n);
            }
            A* __restrict du = &ring[at((t % taps_) * block_columns)];
            convolve(du, piece, t, c0, n, [g = dy_rows[t] + c0](std::int64_t c, A v) {
              return static_cast<A>(g[c]) * silu_grad(v);
            });
            if (sums_wanted && t < piece.last) add_sums(sums.data(), du, piece, t, c0, n);
            const std::int64_t ready = t - taps_ + 1;
            if (dx_rows && ready >= piece.first)
              spread(dx_rows[ready] + c0, ring.data(), ready, taps_, c0, n);
          }
          if (!dx_rows) return;
          for (std::int64_t t = std::max(piece.first, stop - taps_ + 1); t < piece.last; ++t)
            spread(dx_rows[t] + c0, ring.data(), t, stop - t, c0, n);
        });
        if (dweight.defined()) {
          A* to = dweight.row<A>(segment) + c0 * taps_;
          for (std::int64_t j = 0; j < n; ++j)
            for (std::int64_t k = 0; k < taps_; ++k) to[j * taps_ + k] = sums[at(k * block_columns + j)];
        }
        if (dbias.defined()) std::copy_n(&sums[at(taps_ * block_columns)], n, dbias.row<A>(segment) + c0);
      }
    });
  }

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

  /// All four taps of K = 4 lie on tokens of the sequence: the case worth a loop of its own.
  bool inside4(const Piece& piece, std::int64_t t) const { return taps_ == 4 && t - piece.begin >= 3; }

  /// Calls fn(k, row) for every tap with something under it, row being n columns of the input (T) or of the
  /// initial state (A).
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

  /// to[j] = fn(j, c) for n columns from c0, c being the convolution at token t.
  template <class To, class Fn>
  void convolve(To* __restrict to, const Piece& piece, std::int64_t t, std::int64_t c0, std::int64_t n,
                Fn&& fn) const {
    const A* __restrict b = bias_.data() + c0;
    const A* __restrict w = weight_.data() + c0;
    if (inside4(piece, t)) {
      const T* __restrict v = x_[t - 3] + c0;
      const std::int64_t row = x_.stride;
      for (std::int64_t j = 0; j < n; ++j) {
        A sum = b[j] + w[j] * static_cast<A>(v[j]);
        sum += w[channels_ + j] * static_cast<A>(v[row + j]);
        sum += w[2 * channels_ + j] * static_cast<A>(v[2 * row + j]);
        sum += w[3 * channels_ + j] * static_cast<A>(v[3 * row + j]);
        to[j] = static_cast<To>(fn(j, sum));
      }
      return;
    }
    A sum[block_columns];
    std::copy_n(b, n, sum);
    for_taps(piece, t, c0, [&](std::int64_t k, const auto* __restrict v) {
      for (std::int64_t j = 0; j < n; ++j) sum[j] += w[k * channels_ + j] * static_cast<A>(v[j]);
    });
    for (std::int64_t j = 0; j < n; ++j) to[j] = static_cast<To>(fn(j, sum[j]));
  }

  /// sums [K + 1, block]: of dweight for each tap, then of dbias.
  void add_sums(A* __restrict sums, const A* __restrict du, const Piece& piece, std::int64_t t,
                std::int64_t c0, std::int64_t n) const {
    constexpr std::int64_t b = block_columns;
    if (inside4(piece, t)) {
      const T* __restrict v = x_[t - 3] + c0;
      const std::int64_t row = x_.stride;
      for (std::int64_t j = 0; j < n; ++j) {
        sums[j] += du[j] * static_cast<A>(v[j]);
        sums[b + j] += du[j] * static_cast<A>(v[row + j]);
        sums[2 * b + j] += du[j] * static_cast<A>(v[2 * row + j]);
        sums[3 * b + j] += du[j] * static_cast<A>(v[3 * row + j]);
        sums[4 * b + j] += du[j];
      }
      return;
    }
    for_taps(piece, t, c0, [&](std::int64_t k, const auto* __restrict v) {
      for (std::int64_t j = 0; j < n; ++j) sums[k * b + j] += du[j] * static_cast<A>(v[j]);
    });
    for (std::int64_t j = 0; j < n; ++j) sums[taps_ * b + j] += du[j];
  }

  /// dx of row t from du of this row and the `rows` - 1 following ones.
  void spread(T* __restrict to, const A* __restrict ring, std::int64_t t, std::int64_t rows, std::int64_t c0,
              std::int64_t n) const {
    const A* __restrict w = weight_.data() + c0;
    const auto slot = [&](std::int64_t ahead) { return ring + ((t + ahead) % taps_) * block_columns; };
    if (taps_ == 4 && rows == 4) {
      const A *g0 = slot(0), *g1 = slot(1), *g2 = slot(2), *g3 = slot(3);
      for (std::int64_t j = 0; j < n; ++j) {
        A sum = w[3 * channels_ + j] * g0[j];
        sum += w[2 * channels_ + j] * g1[j];
        sum += w[channels_ + j] * g2[j];
        to[j] = static_cast<T>(sum + w[j] * g3[j]);
      }
      return;
    }
    A sum[block_columns] = {};
    for (std::int64_t ahead = 0; ahead < rows; ++ahead) {
      const A* g = slot(ahead);
      for (std::int64_t j = 0; j < n; ++j) sum[j] += w[(taps_ - 1 - ahead) * channels_ + j] * g[j];
    }
    for (std::int64_t j = 0; j < n; ++j) to[j] = static_cast<T>(sum[j]);
  }

  const Sequences& sequences_;
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
  visit_float("causal_conv1d_silu", in.x.dtype(),
              [&](auto tag) { Conv<typename decltype(tag)::type>(in).forward(y); });
}

void causal_conv1d_final_state(const Tensor& state, const ConvInputs& in) {
  visit_float("causal_conv1d_silu", in.x.dtype(),
              [&](auto tag) { fill_final_state<typename decltype(tag)::type>(state, in); });
}

void causal_conv1d_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                            const ConvInputs& in) {
  visit_float("causal_conv1d_silu", in.x.dtype(),
              [&](auto tag) { Conv<typename decltype(tag)::type>(in).backward(dx, dweight, dbias, dy); });
}

}  // namespace nemocube::cpu
