#include "ops/tile.h"

#include <cstring>
#include <vector>

namespace nemocube {
namespace {
using namespace tile_detail;

/// R rows of C from a panel of B, whose rows are `vectors` whole vectors, `stride` elements apart. Only the
/// first `columns` columns are written.
template <int R, int vectors, bool transpose_a, class T>
void block(std::int64_t K, const T* __restrict a, std::int64_t lda, const T* __restrict panel,
           std::int64_t stride, T* __restrict c, std::int64_t ldc, std::int64_t columns, bool accumulate) {
  using V = typename Lanes<T>::type;
  constexpr int n = Lanes<T>::count;
  V sum[R][vectors] = {};
  for (std::int64_t k = 0; k < K; ++k) {
    V b[vectors];
    for (int j = 0; j < vectors; ++j) std::memcpy(&b[j], panel + k * stride + j * n, sizeof(V));
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const T s = transpose_a ? a[k * lda + r] : a[r * lda + k];
      for (int j = 0; j < vectors; ++j) sum[r][j] += s * b[j];
    }
  }
  // Unrolled like the loop above: indices that are not constants would send the sums through memory.
  if (columns == vectors * n) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
      for (int j = 0; j < vectors; ++j) {
        V old = {};
        if (accumulate) std::memcpy(&old, c + r * ldc + j * n, sizeof(V));
        old += sum[r][j];
        std::memcpy(c + r * ldc + j * n, &old, sizeof(V));
      }
    return;
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    T row[vectors * n];
    for (int j = 0; j < vectors; ++j) std::memcpy(row + j * n, &sum[r][j], sizeof(V));
    for (std::int64_t j = 0; j < columns; ++j) c[r * ldc + j] = (accumulate ? c[r * ldc + j] : T(0)) + row[j];
  }
}

/// Columns [n0, n0 + columns) of B as a panel [K, panel_columns], padded with zeros.
template <int panel_columns, class T>
void pack(std::int64_t K, std::int64_t columns, const T* b, std::int64_t ldb, std::int64_t n0,
          T* __restrict panel) {
  if (columns < panel_columns) std::memset(panel, 0, static_cast<std::size_t>(K * panel_columns) * sizeof(T));
  for (std::int64_t k = 0; k < K; ++k)
    std::memcpy(panel + k * panel_columns, b + k * ldb + n0, static_cast<std::size_t>(columns) * sizeof(T));
}

/// Columns [n0, n0 + columns) of C, at most `vectors` whole vectors.
template <int vectors, bool transpose_a, class T>
void columns_of(std::int64_t M, std::int64_t n0, std::int64_t columns, std::int64_t K, const T* a,
                std::int64_t lda, const T* b, std::int64_t ldb, T* c, std::int64_t ldc, bool accumulate,
                T* packed) {
  constexpr int panel_columns = vectors * Lanes<T>::count;
  // A panel is packed, unless packing would only copy rows of B: then B is read in place. Rows of B that are
  // a multiple of 4 KiB apart share cache sets; they are still packed when more than 64 rows of A read them.
  const bool in_place =
      columns == panel_columns && (M <= 64 || (ldb * static_cast<std::int64_t>(sizeof(T))) % 4096 != 0);
  if (!in_place) pack<panel_columns>(K, columns, b, ldb, n0, packed);
  const T* panel = in_place ? b + n0 : packed;
  const std::int64_t stride = in_place ? ldb : panel_columns;
  const auto run = [&]<int R>(std::int64_t m) {
    const T* rows = transpose_a ? a + m : a + m * lda;
    block<R, vectors, transpose_a>(K, rows, lda, panel, stride, c + m * ldc + n0, ldc, columns, accumulate);
    return m + R;
  };
  std::int64_t m = 0;
  // Blocks of few rows do not keep the multipliers busy: 16 rows are cut into 8 and 8, not 12 and 4.
  while (m + block_rows <= M && (block_rows < 12 || M - m != 16)) m = run.template operator()<block_rows>(m);
  if constexpr (block_rows > 8)
    while (m + 8 <= M) m = run.template operator()<8>(m);
  while (m + 4 <= M) m = run.template operator()<4>(m);
  while (m < M) m = run.template operator()<1>(m);
}

}  // namespace

template <class T, bool transpose_a>
void tile_gemm(std::int64_t M, std::int64_t N, std::int64_t K, const T* a, std::int64_t lda, const T* b,
               std::int64_t ldb, T* c, std::int64_t ldc, bool accumulate) {
  constexpr std::int64_t count = Lanes<T>::count, panel_columns = panel_vectors * count;
  static thread_local std::vector<T> packed;
  if (static_cast<std::int64_t>(packed.size()) < (K + 1) * panel_columns)  // never empty, so never null
    packed.resize(static_cast<std::size_t>((K + 1) * panel_columns));
  for (std::int64_t n0 = 0; n0 < N; n0 += panel_columns) {
    const std::int64_t columns = N - n0 < panel_columns ? N - n0 : panel_columns;
    auto* run = columns <= count ? columns_of<1, transpose_a, T> : columns_of<panel_vectors, transpose_a, T>;
    run(M, n0, columns, K, a, lda, b, ldb, c, ldc, accumulate, packed.data());
  }
}

template void tile_gemm<float, false>(std::int64_t, std::int64_t, std::int64_t, const float*, std::int64_t,
                                      const float*, std::int64_t, float*, std::int64_t, bool);
template void tile_gemm<float, true>(std::int64_t, std::int64_t, std::int64_t, const float*, std::int64_t,
                                     const float*, std::int64_t, float*, std::int64_t, bool);
template void tile_gemm<double, false>(std::int64_t, std::int64_t, std::int64_t, const double*, std::int64_t,
                                       const double*, std::int64_t, double*, std::int64_t, bool);
template void tile_gemm<double, true>(std::int64_t, std::int64_t, std::int64_t, const double*, std::int64_t,
                                      const double*, std::int64_t, double*, std::int64_t, bool);

}  // namespace nemocube
