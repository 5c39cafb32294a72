#include <algorithm>
#include <array>
#include <cstring>

#include "core/parallel_for.h"
#include "ops/embedding/embedding_kernels.h"

namespace nemocube::cpu {
namespace {

// Each thread owns a range of columns, so that one thread sums each element in token order.
template <class To, class From>
void scatter_add(const Tensor& to, const Tensor& ids, std::int64_t begin, const Tensor& dy, To scale) {
  const auto* id = ids.data<std::int64_t>();
  constexpr std::int64_t line = 64 / sizeof(To);
  const std::int64_t cols = dy.cols(), lines = (cols + line - 1) / line, rows = to.rows();
  parallel_for(lines, 1 + 16384 / (line * dy.rows()), [&](std::int64_t first, std::int64_t last) {
    const std::int64_t c0 = first * line, end = std::min(last * line, cols);
    for (std::int64_t t = 0; t < dy.rows(); ++t) {
      const std::int64_t row = id[t] - begin;
      if (row < 0 || row >= rows) continue;
      To* __restrict sum = to.row<To>(row);
      const From* __restrict g = dy.row<From>(t);
      for (std::int64_t c = c0; c < end; ++c) sum[c] += scale * static_cast<To>(g[c]);
    }
  });
}

template <class T>
void scaled_rows(const Tensor& y, const std::int64_t* id, std::int64_t begin, const Tensor& weight,
                 acc_t<T> scale) {
  const std::int64_t cols = y.cols(), rows = weight.rows();
  parallel_for(y.rows(), 1 + 16384 / (cols + 1), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
      const std::int64_t row = id[t] - begin;
      const bool own = row >= 0 && row < rows;
      T* __restrict to = y.row<T>(t);
      const T* __restrict from = weight.row<T>(own ? row : 0);
      for (std::int64_t c = 0; c < cols; ++c)
        to[c] = own ? static_cast<T>(scale * static_cast<acc_t<T>>(from[c])) : T{};
    }
  });
}

template <class T>
void add_noise(const Tensor& y, const RandomTable& draws, double magnitude, const std::int64_t* row_numbers) {
  using A = acc_t<T>;
  constexpr std::int64_t piece = 1024;  // columns whose noise is made at a time; a multiple of 4
  const A unit = static_cast<A>(magnitude) * A{0x1p-24};
  const std::int64_t cols = y.cols();
  parallel_for(y.rows(), 1 + 16384 / (cols + 1), [&](std::int64_t begin, std::int64_t end) {
    std::array<A, piece> noise;  // in memory, so that no product joins a sum without its rounding
    for (std::int64_t t = begin; t < end; ++t)
      for (std::int64_t first = 0; first < cols; first += piece) {
        const std::int64_t count = std::min(piece, cols - first);
        const auto row = static_cast<std::uint64_t>(row_numbers[t]),
                   block = static_cast<std::uint64_t>(first / 4);
        for (std::size_t b = 0; b < static_cast<std::size_t>((count + 3) / 4); ++b) {
          const auto bits = draws.block(row, block + b);
          for (std::size_t i = 0; i < 4; ++i)
            noise[4 * b + i] = static_cast<A>(2 * (static_cast<std::int32_t>(bits[i]) >> 8) + 1) * unit;
        }
        T* const to = y.row<T>(t) + first;
        for (std::int64_t c = 0; c < count; ++c)
          to[c] = static_cast<T>(static_cast<A>(to[c]) + noise[static_cast<std::size_t>(c)]);
      }
  });
}

}  // namespace

void embedding_forward(const Tensor& y, const Tensor& ids, std::int64_t begin, const Tensor& weight,
                       double scale) {
  if (y.numel() == 0) return;
  if (scale != 1 && weight.rows() > 0)
    return visit_float("embedding", weight.dtype(), [&]<class T>(TypeTag<T>) {
      scaled_rows<T>(y, ids.data<std::int64_t>(), begin, weight, static_cast<acc_t<T>>(scale));
    });
  const auto* id = ids.data<std::int64_t>();
  const std::int64_t element = size_of(weight.dtype()), rows = weight.rows();
  const std::int64_t row_bytes = y.cols() * element, stride = weight.row_stride() * element;
  std::byte* to = y.host_bytes();
  const std::byte* from = weight.host_bytes();
  const auto length = static_cast<std::size_t>(row_bytes);
  parallel_for(y.rows(), 1 + 65536 / row_bytes, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
      const std::int64_t row = id[t] - begin;
      if (row >= 0 && row < rows)
        std::memcpy(to + t * row_bytes, from + row * stride, length);
      else
        std::memset(to + t * row_bytes, 0, length);
    }
  });
}

void embedding_backward(const Output& dweight, const Tensor& ids, std::int64_t begin, const Tensor& dy,
                        double scale) {
  if (dweight.how == Into::set) dweight.to.zero();
  if (dy.numel() == 0) return;
  visit_float("embedding", dy.dtype(), [&]<class From>(TypeTag<From>) {
    scatter_add<acc_t<From>, From>(dweight.to, ids, begin, dy, static_cast<acc_t<From>>(scale));
  });
}

void embedding_noise(const Tensor& y, const RandomTable& draws, const Tensor& magnitude,
                     const Tensor& row_numbers) {
  visit_float("embedding", y.dtype(), [&]<class T>(TypeTag<T>) {
    add_noise<T>(y, draws, *magnitude.data<double>(), row_numbers.data<std::int64_t>());
  });
}

}  // namespace nemocube::cpu
