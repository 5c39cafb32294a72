#pragma once
#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "core/autograd.h"
#include "ops/prefetch.h"
#include "ops/tile.h"

/// Matrices in working memory, for CPU kernels that form many small products (ops/tile.h) of the tokens of a
/// chunk: the scans.
namespace nemocube::cpu::tiles {

/// n rounded up to a multiple of 16: whole cache lines for f32 (16 values) and for f64 (8 values).
constexpr std::int64_t padded(std::int64_t n) { return (n + 15) / 16 * 16; }

/// A view of a row-major matrix or of a part of one; the view does not own the memory.
template <class A>
struct Matrix {
  A* data = nullptr;
  std::int64_t rows = 0, cols = 0, stride = 0;

  A* row(std::int64_t r) const { return data + r * stride; }
  Matrix part(std::int64_t r0, std::int64_t r1, std::int64_t c0, std::int64_t c1) const {
    return {row(r0) + c0, r1 - r0, c1 - c0, stride};
  }
  Matrix row_range(std::int64_t r0, std::int64_t r1) const { return part(r0, r1, 0, cols); }
  Matrix col_range(std::int64_t c0, std::int64_t c1) const { return part(0, rows, c0, c1); }
  /// The first r * c elements, as an r x c matrix. For a matrix that is not a part of a wider one.
  Matrix reshaped(std::int64_t r, std::int64_t c) const { return {data, r, c, c}; }
  void zero() const {
    for (std::int64_t r = 0; r < rows; ++r) std::fill_n(row(r), cols, A(0));
  }
};

/// c = a b, or c += a b.
template <class A>
void multiply(Into how, const Matrix<A>& c, const Matrix<A>& a, const Matrix<A>& b) {
  tile_gemm<A, false>(c.rows, c.cols, a.cols, a.data, a.stride, b.data, b.stride, c.data, c.stride,
                      how == Into::add);
}
/// c += a^T b
template <class A>
void add_transposed_product(const Matrix<A>& c, const Matrix<A>& a, const Matrix<A>& b) {
  tile_gemm<A, true>(c.rows, c.cols, a.rows, a.data, a.stride, b.data, b.stride, c.data, c.stride, true);
}

/// A matrix with one element for each pair of tokens of a chunk is triangular. Products skip its zeros in
/// blocks of this many rows.
constexpr std::int64_t triangle_rows = 16;

/// Calls fn(r0, r1) for blocks of rows [r0, r1) of an n x n matrix. In these rows a lower triangle has the
/// columns [0, r1), an upper triangle the columns [r0, n).
template <class Fn>
void for_row_blocks(std::int64_t n, Fn&& fn) {
  for (std::int64_t r0 = 0; r0 < n; r0 += triangle_rows) fn(r0, std::min(n, r0 + triangle_rows));
}

/// Working memory of a kernel: one uninitialised block, from which the constructor cuts the named matrices,
/// each at the start of a cache line.
template <class A>
class Workspace {
 public:
  struct Piece {
    Matrix<A>& matrix;
    std::int64_t rows, cols;
  };
  explicit Workspace(std::initializer_list<Piece> pieces) {
    std::int64_t elements = 0;
    for (const Piece& p : pieces) elements += padded(p.rows * p.cols);
    memory_ = Tensor::empty({elements}, dtype_of<A>(), Device::cpu);
    A* next = memory_.template data<A>();
    for (const Piece& p : pieces) {
      p.matrix = {next, p.rows, p.cols, p.cols};
      next += padded(p.rows * p.cols);
    }
  }

 private:
  Tensor memory_;
};

/// to = rows from t0 on and columns from c0 on of t, in the accumulation dtype.
template <class T, class A>
void load(const Matrix<A>& to, const Tensor& t, std::int64_t t0, std::int64_t c0) {
  const T* source = t.row<T>(t0) + c0;
  for (std::int64_t l = 0; l < to.rows; ++l, source += t.row_stride()) {
    const T* __restrict from = source;
    A* __restrict values = to.row(l);
    for (std::int64_t c = 0; c < to.cols; ++c) values[c] = static_cast<A>(from[c]);
  }
}

/// The reverse of load, rounding to T.
template <class T, class A>
void store(const Matrix<A>& from, const Tensor& t, std::int64_t t0, std::int64_t c0) {
  T* target = t.row<T>(t0) + c0;
  for (std::int64_t l = 0; l < from.rows; ++l, target += t.row_stride()) {
    const A* __restrict values = from.row(l);
    T* __restrict to = target;
    for (std::int64_t c = 0; c < from.cols; ++c) to[c] = static_cast<T>(values[c]);
  }
}

/// Brings columns [c0, c0 + columns) of the rows [t0, t0 + n) into the cache, for a later chunk.
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

}  // namespace nemocube::cpu::tiles
