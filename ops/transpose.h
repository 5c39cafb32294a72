#pragma once
#include <cstdint>
#include <cstring>

namespace nemocube {

/// to [cols, rows] = from [rows, cols]^T. Row strides in elements, at least rows and cols; the two may not
/// overlap; sizes may be 0. Single-threaded; for tiles that are in cache.
template <class A>
void transpose(A* __restrict to, std::int64_t to_stride, const A* __restrict from, std::int64_t from_stride,
               std::int64_t rows, std::int64_t cols) {
  for (std::int64_t c = 0; c < cols; ++c)
    for (std::int64_t r = 0; r < rows; ++r) to[c * to_stride + r] = from[r * from_stride + c];
}

/// f32 in squares of 8 x 8: three rounds of shuffles between the rows instead of 64 moves of single elements.
inline void transpose(float* __restrict to, std::int64_t to_stride, const float* __restrict from,
                      std::int64_t from_stride, std::int64_t rows, std::int64_t cols) {
  typedef float V __attribute__((vector_size(32)));
  const std::int64_t whole_rows = rows / 8 * 8, whole_cols = cols / 8 * 8;
  for (std::int64_t c = 0; c < whole_cols; c += 8)
    for (std::int64_t r = 0; r < whole_rows; r += 8) {
      V a[8], b[8];
      for (int i = 0; i < 8; ++i) std::memcpy(&a[i], from + (r + i) * from_stride + c, sizeof(V));
#pragma GCC unroll 4
      for (int i = 0; i < 8; i += 2) {
        b[i] = __builtin_shufflevector(a[i], a[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
        b[i + 1] = __builtin_shufflevector(a[i], a[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
      }
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const int j = i / 2 * 4 + i % 2;
        a[j] = __builtin_shufflevector(b[j], b[j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        a[j + 2] = __builtin_shufflevector(b[j], b[j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
      }
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        b[i] = __builtin_shufflevector(a[i], a[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        b[i + 4] = __builtin_shufflevector(a[i], a[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
      }
      for (int i = 0; i < 8; ++i) std::memcpy(to + (c + i) * to_stride + r, &b[i], sizeof(V));
    }
  if (whole_rows < rows)
    transpose<float>(to + whole_rows, to_stride, from + whole_rows * from_stride, from_stride,
                     rows - whole_rows, whole_cols);
  if (whole_cols < cols)
    transpose<float>(to + whole_cols * to_stride, to_stride, from + whole_cols, from_stride, rows,
                     cols - whole_cols);
}

}  // namespace nemocube
