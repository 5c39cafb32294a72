#pragma once
#include <cuda_bf16.h>

#include <cstdint>

/// Matrix products of a warp on tensor cores, bf16 x bf16 -> f32, with tiles of bf16 in shared memory.
/// Instructions of compute 8.0.
///
/// A warp multiplies fragments: each of its threads holds a few elements. With g = lane / 4 and t = lane % 4,
/// where two neighbours share a register, the lower one in its low half:
///     A, 16 x 16 (m x k)   r[0]: (g, 2t) and (g, 2t + 1)   r[1]: the same in row g + 8
///                          r[2]: the same in column + 8    r[3]: row g + 8 and column + 8
///     B, 16 x 8 (k x n)    r[0]: (2t, g) and (2t + 1, g)   r[1]: (2t + 8, g) and (2t + 9, g)
///     C, 16 x 8 (m x n)    v[0], v[1]: (g, 2t) and (g, 2t + 1)   v[2], v[3]: the same in row g + 8
/// Two neighbouring C fragments therefore hold the elements of an A fragment where they belong (fragment_a).
///
/// source: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type", "ldmatrix", "cp.async"
namespace nemocube::cuda {

struct FragmentA {
  unsigned r[4];
};
struct FragmentB {
  unsigned r[2];
};
struct FragmentC {
  float v[4] = {};
};

/// c += a b. The sums of a fragment are in f32, in the order of the hardware.
__device__ inline void mma(FragmentC& c, const FragmentA& a, const FragmentB& b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
}

/// Two f32 rounded to nearest even; `low` in the low half.
__device__ inline unsigned pack_bf16(float low, float high) {
  unsigned both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

/// Columns 0 to 7 and 8 to 15 of a product, rounded to bf16, as the left operand of the next one.
__device__ inline FragmentA fragment_a(const FragmentC& left, const FragmentC& right) {
  return {{pack_bf16(left.v[0], left.v[1]), pack_bf16(left.v[2], left.v[3]),
           pack_bf16(right.v[0], right.v[1]), pack_bf16(right.v[2], right.v[3])}};
}

/// The address of a place in shared memory, as instructions want it.
__device__ inline unsigned shared_address(const void* place) {
  return static_cast<unsigned>(__cvta_generic_to_shared(place));
}

/// A tile of bf16 in shared memory: rows of `cols` elements, a multiple of 8, without padding. `start` is a
/// multiple of 128 bytes.
///
/// The packs of 8 elements (16 bytes) of a row are permuted. Shared memory serves 128 bytes at a time, so
/// eight packs at different places modulo 128 bytes. ldmatrix reads eight rows at the same column, which
/// would lie in one place if rows had a multiple of 128 bytes. Where a row has packs = 2^s odd, s <= 3, eight
/// neighbouring rows start at 2^(3-s) places; exchanging packs within groups of 2^s by the remaining bits of
/// the row's number takes them to eight. A warp that writes whole rows pack by pack has no conflicts either,
/// because it writes whole groups.
template <int cols>
struct SharedTile {
  static_assert(cols % 8 == 0);
  static constexpr int packs = cols / 8;
  static constexpr int swizzle_bits = packs % 8 == 0 ? 3 : packs % 4 == 0 ? 2 : packs % 2 == 0 ? 1 : 0;
  static __host__ __device__ constexpr int bytes(int rows) { return rows * cols * 2; }
  /// Of pack `pack` of row `row`, in bytes from the start.
  static __host__ __device__ constexpr int offset(int row, int pack) {
    return (row * packs + (pack ^ ((row >> (3 - swizzle_bits)) & ((1 << swizzle_bits) - 1)))) * 16;
  }

  char* start;
  __device__ explicit SharedTile(void* at) : start(static_cast<char*>(at)) {}
  /// For accesses of up to 16 bytes that stay in one pack.
  __device__ __nv_bfloat16* at(int row, int col) const {
    return reinterpret_cast<__nv_bfloat16*>(start + offset(row, col / 8)) + col % 8;
  }
  __device__ unsigned pack_address(int row, int pack) const {
    return shared_address(start) + static_cast<unsigned>(offset(row, pack));
  }
};

/// Loads `count` (2 or 4) matrices of 8 x 8 elements. Lane 8 i + j gives the address of row j of matrix i;
/// with 2 matrices the lanes from 16 on give any valid address. r[i] of lane l gets the elements (l / 4, 2
/// (l % 4)) and its right neighbour of matrix i; with `transposed`, of its transpose.
template <bool transposed>
__device__ void load_matrices(unsigned (&r)[4], unsigned row_address) {
  if constexpr (transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row_address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row_address)
                 : "memory");
}
template <bool transposed>
__device__ void load_matrices(unsigned (&r)[2], unsigned row_address) {
  if constexpr (transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(row_address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(row_address)
                 : "memory");
}

// Fragments of tiles. `lane` is the thread's number in its warp; rows and columns are multiples of 8.

/// A(m, k) = tile(row + m, col + k)
template <int cols>
__device__ FragmentA load_a(const SharedTile<cols>& tile, int row, int col, int lane) {
  FragmentA a;
  load_matrices<false>(a.r, tile.pack_address(row + lane % 16, col / 8 + lane / 16));
  return a;
}
/// A(m, k) = tile(row + k, col + m)
template <int cols>
__device__ FragmentA load_a_transposed(const SharedTile<cols>& tile, int row, int col, int lane) {
  FragmentA a;
  load_matrices<true>(a.r, tile.pack_address(row + lane % 8 + lane / 16 * 8, col / 8 + lane / 8 % 2));
  return a;
}

/// B(k, n) = tile(row + n, col + k), for a product with the transpose of the tile
template <int cols>
__device__ FragmentB load_b_transposed(const SharedTile<cols>& tile, int row, int col, int lane) {
  FragmentB b;
  load_matrices<false>(b.r, tile.pack_address(row + lane % 8, col / 8 + lane / 8 % 2));
  return b;
}
/// B(k, n) = tile(row + k, col + n)
template <int cols>
__device__ FragmentB load_b(const SharedTile<cols>& tile, int row, int col, int lane) {
  FragmentB b;
  load_matrices<true>(b.r, tile.pack_address(row + lane % 16, col / 8));
  return b;
}

/// Two B fragments, for n from 0 to 7 and from 8 to 15, by one instruction.
struct FragmentB2 {
  FragmentB left, right;
};
template <int cols>
__device__ FragmentB2 load_b2_transposed(const SharedTile<cols>& tile, int row, int col, int lane) {
  unsigned r[4];
  load_matrices<false>(r, tile.pack_address(row + lane % 8 + lane / 16 * 8, col / 8 + lane / 8 % 2));
  return {{{r[0], r[1]}}, {{r[2], r[3]}}};
}
template <int cols>
__device__ FragmentB2 load_b2(const SharedTile<cols>& tile, int row, int col, int lane) {
  unsigned r[4];
  load_matrices<true>(r, tile.pack_address(row + lane % 16, col / 8 + lane / 16));
  return {{{r[0], r[1]}}, {{r[2], r[3]}}};
}

/// Begins to copy the first `bytes` (0 to 16) of 16 bytes from global to shared memory, past L1; the others
/// become zero. Both addresses are multiples of 16. Of 0 bytes nothing is read, so `from` may be any such
/// number.
__device__ inline void copy_async(unsigned to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes)
               : "memory");
}
/// Ends a group of copies of this thread.
__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most the `pending` latest groups of this thread are under way. Other threads see the copies
/// after the next barrier.
template <int pending>
__device__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/// Begins to copy `rows` rows to a tile, by a block of `threads`. from(row) is the address of the row's first
/// element, a multiple of 16 bytes, or null for a row of zeros.
template <int rows, int threads, int cols, class From>
__device__ void copy_rows_async(const SharedTile<cols>& tile, int thread, From&& from) {
  constexpr int packs = SharedTile<cols>::packs;
#pragma unroll
  for (int first = 0; first < rows * packs; first += threads) {
    const int i = first + thread;
    if (rows * packs % threads != 0 && i >= rows * packs) break;
    const int row = i / packs, pack = i % packs;
    const __nv_bfloat16* const at = from(row);
    copy_async(tile.pack_address(row, pack), at ? at + pack * 8 : at, at ? 16 : 0);
  }
}

}  // namespace nemocube::cuda
