#pragma once
#include <cstdint>

/// Small matrix products of operands that are in cache already. Attention and the chunked scan form many
/// products of a few hundred rows between elementwise work. Single-threaded: the callers divide their work
/// among threads. Large products belong to ops/matmul.
namespace nemocube {
namespace tile_detail {

#if defined(__AVX512F__)
constexpr int vector_bytes = 64, block_rows = 12;
#else
constexpr int vector_bytes = 32, block_rows = 6;
#endif
constexpr int panel_vectors = 2;  // vectors of a row of C formed together, while that many remain

template <class T>
struct Lanes {
  typedef T type __attribute__((vector_size(vector_bytes)));
  static constexpr int count = vector_bytes / static_cast<int>(sizeof(T));
};

}  // namespace tile_detail

/// C = (or +=, when `accumulate`) op(A) B, with op(A) [M, K], B [K, N], C [M, N], all row-major with row
/// strides lda, ldb, ldc in elements; op transposes when the flag is set (A is then stored [K, M]). T is
/// float or double; sums run over k in ascending order in T. C may not overlap A or B. An empty sum (K = 0)
/// is zero. Repeats bit for bit, on any thread.
template <class T, bool transpose_a>
void tile_gemm(std::int64_t M, std::int64_t N, std::int64_t K, const T* a, std::int64_t lda, const T* b,
               std::int64_t ldb, T* c, std::int64_t ldc, bool accumulate);

}  // namespace nemocube
