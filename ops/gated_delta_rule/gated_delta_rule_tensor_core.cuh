#pragma once
#include "ops/gated_delta_rule/gated_delta_rule.cuh"
#include "ops/mma_chunks.cuh"

/// Parts of the kernels that form products on tensor cores, for bf16 and keys and values of 128. Rows of q,
/// k, v and d_o are operands as they are; what normalises them and decays are factors of sums. Operands
/// that are themselves results (states, U, products between tokens) are rounded to bf16. Inverses of
/// triangular systems are f32, and are two operands of bf16 each: a value rounded, and what rounding
/// leaves. All sums are f32.
namespace nemocube::cuda::delta_rule {

using mma_chunks::Element;
using mma_chunks::for_each;
using mma_chunks::for_each_pair;
using mma_chunks::piece;
using mma_chunks::set_pair;
using mma_chunks::state_rows;

constexpr int dim = 128;  // of keys and values
static_assert(piece == tile && state_rows == dim);
using RowTile = SharedTile<dim>;
constexpr int row_tile_bytes = RowTile::bytes(piece);

/// Columns [16 block, 16 block + 16) of the rows [row, row + 16) of left times right^T, for a warp.
template <int blocks>
__device__ void add_row_products(FragmentC (&sums)[blocks][2], const RowTile& left, int row,
                                 const RowTile& right, int right_row, int lane) {
#pragma unroll 2
  for (int k = 0; k < dim; k += 16) {
    const FragmentA a = load_a(left, row, k, lane);
#pragma unroll
    for (int block = 0; block < blocks; ++block)
      mma_chunks::add_transposed_product(sums[block], a, right, right_row + 16 * block, k, lane);
  }
}

/// A 16 x 16 block of a matrix of f32, each element rounded to bf16, and the rounding errors.
struct FragmentA2 {
  FragmentA rounded, rest;
};
/// element(row, column) gives an element and its right neighbour.
template <class Element2>
__device__ FragmentA2 split_fragment(int row, int col, int lane, Element2&& element) {
  FragmentA2 a;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 v = element(row + lane / 4 + i % 2 * 8, col + lane % 4 * 2 + i / 2 * 8);
    a.rounded.r[i] = pack_bf16(v.x, v.y);
    const float2 r = mma_chunks::to_floats(a.rounded.r[i]);
    a.rest.r[i] = pack_bf16(v.x - r.x, v.y - r.y);
  }
  return a;
}

/// The columns of a head in working memory with rows for each token.
__device__ inline std::int64_t column_of(int head) { return std::int64_t{head} * dim; }
/// A head's state at `index` of a tensor of states.
template <class T>
__device__ T* state_at(T* states, const Rule<Element>& rule, std::int64_t index, int head) {
  return states + (index * rule.value_heads + head) * std::int64_t{dim * dim};
}

/// Reads or writes columns from col0 on of a state in f32 that is in registers.
template <int cols>
__device__ void load_state(mma_chunks::State<cols>& state, const float* from, int col0, int warp, int lane) {
  state.for_each_pair(warp, lane, [&](float& a, float& b, int row, int col) {
    const float2 v = *reinterpret_cast<const float2*>(from + row * dim + col0 + col);
    a = v.x;
    b = v.y;
  });
}
template <int cols>
__device__ void store_state(mma_chunks::State<cols>& state, float* to, int col0, int warp, int lane) {
  state.for_each_pair(warp, lane, [&](float a, float b, int row, int col) {
    *reinterpret_cast<float2*>(to + row * dim + col0 + col) = make_float2(a, b);
  });
}
/// Rounds a kept state to a tile, by a block of `threads`.
template <int threads>
__device__ void round_state(const RowTile& to, const float* from) {
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < dim * dim / 8; i += threads) {
    const float4 a = *reinterpret_cast<const float4*>(from + i * 8),
                 b = *reinterpret_cast<const float4*>(from + i * 8 + 4);
    *reinterpret_cast<uint4*>(to.at(i / (dim / 8), i % (dim / 8) * 8)) =
        make_uint4(pack_bf16(a.x, a.y), pack_bf16(a.z, a.w), pack_bf16(b.x, b.y), pack_bf16(b.z, b.w));
  }
}

/// Blocks that solve triangular systems.
constexpr int solve_threads = tile_threads;

/// Sets I + A, transposed as invert() wants it, by a block of solve_threads.
__device__ inline void set_system(PairTile& to, const RowTile& K, const HeadTokens& t, int warp, int lane) {
  const int row = warp / 2 * 16, col = warp % 2 * 32;
  FragmentC products[2][2];
  add_row_products(products, K, row, K, col, lane);
#pragma unroll
  for (int block = 0; block < 2; ++block)
    for_each(products[block], row, col + 16 * block, lane, [&](float v, int l, int s) {
      const float a = t.beta[l] * t.k[l] * t.k[s] * v * t.between(s, l);
      to.rows[s][l] = s < l ? a : s == l ? 1 : 0;
    });
}

/// A warp's 16 rows and 64 columns of the inverse, its columns times factor(s), times a tile.
template <class Factor>
__device__ void add_solution(FragmentC (&sums)[1][8], const PairTile& inverse, const RowTile& rows, int row,
                             int col, int lane, Factor&& factor) {
#pragma unroll 1
  for (int s0 = 0; s0 <= row; s0 += 16) {
    const FragmentA2 a = split_fragment(row, s0, lane, [&](int l, int s) {
      const float2 v = *reinterpret_cast<const float2*>(&inverse.rows[l][s]);
      return make_float2(v.x * factor(s), v.y * factor(s + 1));
    });
    const FragmentA rounded[1] = {a.rounded}, rest[1] = {a.rest};
    mma_chunks::add_product(sums, rounded, rows, s0, lane, col);
    mma_chunks::add_product(sums, rest, rows, s0, lane, col);
  }
}

/// The same with the inverse transposed: its rows l times factor(l), for 16 columns s from `row` on.
template <class Factor>
__device__ void add_transposed_solution(FragmentC (&sums)[1][8], const PairTile& inverse, const RowTile& rows,
                                        int row, int col, int lane, Factor&& factor) {
#pragma unroll 1
  for (int l0 = row; l0 < piece; l0 += 16) {
    const FragmentA2 a = split_fragment(row, l0, lane, [&](int s, int l) {
      return make_float2(inverse.rows[l][s] * factor(l), inverse.rows[l + 1][s] * factor(l + 1));
    });
    const FragmentA rounded[1] = {a.rounded}, rest[1] = {a.rest};
    mma_chunks::add_product(sums, rounded, rows, l0, lane, col);
    mma_chunks::add_product(sums, rest, rows, l0, lane, col);
  }
}

/// Tensors that 16-byte accesses need in another place.
inline DeltaRuleProblem aligned_problem(const DeltaRuleProblem& problem) {
  DeltaRuleProblem aligned = problem;
  for (Tensor* t : {&aligned.q, &aligned.k, &aligned.v, &aligned.initial_state})
    if (t->defined()) *t = mma_chunks::aligned_operand(*t);
  return aligned;
}

}  // namespace nemocube::cuda::delta_rule
