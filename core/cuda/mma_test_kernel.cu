#include "core/cuda/mma_test_kernel.h"

#include "core/cuda/device.cuh"
#include "core/cuda/mma.cuh"
#include "core/cuda/rows.cuh"
#include "core/cuda/warp.cuh"

namespace nemocube::cuda {
namespace {

/// Whether eight rows at one column, and eight packs that follow each other, lie in different places modulo
/// 128 bytes.
template <int cols>
constexpr bool free_of_conflicts() {
  using Tile = SharedTile<cols>;
  for (int row = 0; row < 64; row += 8)
    for (int pack = 0; pack < Tile::packs; ++pack) {
      int column = 0, neighbours = 0;
      for (int i = 0; i < 8; ++i) {
        const int next = row * Tile::packs + pack * 8 + i;
        column |= 1 << Tile::offset(row + i, pack) % 128 / 16;
        neighbours |= 1 << Tile::offset(next / Tile::packs, next % Tile::packs) % 128 / 16;
      }
      if (column != 255 || neighbours != 255) return false;
    }
  return true;
}
static_assert(free_of_conflicts<8>() && free_of_conflicts<16>() && free_of_conflicts<24>() &&
              free_of_conflicts<32>() && free_of_conflicts<40>() && free_of_conflicts<48>() &&
              free_of_conflicts<64>() && free_of_conflicts<80>() && free_of_conflicts<96>() &&
              free_of_conflicts<112>() && free_of_conflicts<128>() && free_of_conflicts<256>());

struct Operand {
  Rows<const __nv_bfloat16> rows;
  int count;
  __device__ const __nv_bfloat16* operator()(int row) const { return row < count ? rows.row(row) : nullptr; }
};
Operand operand_of(const Tensor& t) {
  return {{data_of<__nv_bfloat16>(t), t.row_stride()}, static_cast<int>(t.rows())};
}

/// c of 16 x n += a [16 x n] b [n x n], where a(k) is the fragment of the columns from 16 k on.
template <int n, class A>
__device__ void multiply(FragmentC (&c)[n / 8], A&& a, const SharedTile<n>& b, bool transposed, bool pairs,
                         int lane) {
#pragma unroll
  for (int k = 0; k < n; k += 16) {
    const FragmentA left = a(k);
#pragma unroll
    for (int j = 0; j < n; j += 16) {
      FragmentB2 right;
      if (pairs)
        right = transposed ? load_b2_transposed(b, j, k, lane) : load_b2(b, k, j, lane);
      else if (transposed)
        right = {load_b_transposed(b, j, k, lane), load_b_transposed(b, j + 8, k, lane)};
      else
        right = {load_b(b, k, j, lane), load_b(b, k, j + 8, lane)};
      mma(c[j / 8], left, right.left);
      mma(c[j / 8 + 1], left, right.right);
    }
  }
}

template <int n>
__device__ void store(float* to, const FragmentC (&c)[n / 8], int row, int lane) {
#pragma unroll
  for (int j = 0; j < n / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      to[(row + lane / 4 + i / 2 * 8) * n + j * 8 + lane % 4 * 2 + i % 2] = c[j].v[i];
}

/// A warp has 16 rows of the products.
template <int n>
__global__ void __launch_bounds__(2 * n)
    mma_test_kernel(float* c, float* d, const Operand a, const Operand b, const Operand e, bool a_transposed,
                    bool b_transposed, bool pairs) {
  extern __shared__ __align__(128) char shared[];
  constexpr int threads = 2 * n, bytes = SharedTile<n>::bytes(n);
  const SharedTile<n> tile_a(shared), tile_b(shared + bytes), tile_e(shared + 2 * bytes);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % warp_threads;
  const int row = thread / warp_threads * 16;
  copy_rows_async<n, threads>(tile_a, thread, a);
  copy_rows_async<n, threads>(tile_b, thread, b);
  copy_async_commit();
  copy_rows_async<n, threads>(tile_e, thread, e);
  copy_async_commit();
  copy_async_wait<1>();
  __syncthreads();
  FragmentC first[n / 8], second[n / 8];
  multiply<n>(
      first,
      [&](int k) {
        return a_transposed ? load_a_transposed(tile_a, k, row, lane) : load_a(tile_a, row, k, lane);
      },
      tile_b, b_transposed, pairs, lane);
  store<n>(c, first, row, lane);
  copy_async_wait<0>();
  __syncthreads();
  multiply<n>(
      second, [&](int k) { return fragment_a(first[k / 8], first[k / 8 + 1]); }, tile_e, false, pairs, lane);
  store<n>(d, second, row, lane);
}

template <int n>
void products(const MmaTest& t) {
  launch_shared("products of the test", mma_test_kernel<n>, 1, 2 * n, 3 * SharedTile<n>::bytes(n),
                data_of<float>(t.c), data_of<float>(t.d), operand_of(t.a), operand_of(t.b), operand_of(t.e),
                t.a_transposed, t.b_transposed, t.pairs);
}

void test(const MmaTest& t) {
  switch (t.c.rows()) {
    case 16:
      return products<16>(t);
    case 32:
      return products<32>(t);
    case 48:
      return products<48>(t);
    case 80:
      return products<80>(t);
    default:
      return products<128>(t);
  }
}

const Provide provided[] = {{mma_test, test}};

}  // namespace
}  // namespace nemocube::cuda
