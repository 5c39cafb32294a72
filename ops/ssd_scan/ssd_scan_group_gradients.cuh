#pragma once
#include <algorithm>

#include "ops/ssd_scan/ssd_scan_tensor_core_backward.cuh"

/// The second backward kernel on tensor cores: the gradients of B and C, and sums over slices.
namespace nemocube::cuda::ssd {

// A warp has 16 tokens and half of the rows of the states.
constexpr int group_warps = chunk_tokens / 16 * 2, group_threads = group_warps * warp_threads,
              half_rows = state_rows / 2;

template <int cols>
struct GroupTiles {
  static constexpr int channels = SharedTile<cols>::bytes(chunk_tokens),
                       pairs = SharedTile<chunk_tokens>::bytes(chunk_tokens);
  static constexpr std::size_t bytes = std::max(4 * channels, 2 * pairs);
  static_assert(state_rows == chunk_tokens);
  SharedTile<cols> X, dY, H, R;  // of one head
  // In their place after the last head:
  SharedTile<chunk_tokens> P;   // on and above the diagonal
  SharedTile<state_rows> rows;  // B, C; dC, dB
  __device__ explicit GroupTiles(char* at)
      : X(at), dY(at + channels), H(at + 2 * channels), R(at + 3 * channels), P(at), rows(at + pairs) {}
};

/// The 16 x 16 blocks on and above the diagonal of P that a warp has: calls fn(number, row, column), in
/// blocks. The 36 blocks, row after row, are dealt to the warps.
constexpr int block_rows = chunk_tokens / 16, all_blocks = block_rows * (block_rows + 1) / 2,
              own_blocks = (all_blocks + group_warps - 1) / group_warps;
template <class Fn>
__device__ void for_own_blocks(int warp, Fn&& fn) {
#pragma unroll
  for (int i = 0; i < own_blocks; ++i) {
    int place = opaque(warp) + i * group_warps;
    if (place >= all_blocks) return;
    int row = 0;
    for (; place >= block_rows - row; ++row) place -= block_rows - row;
    fn(i, row, row + place);
  }
}

struct GroupPart {
  std::int64_t chunk;
  int first_head, last_head;
  StatePart rows;  // of the states
  std::int64_t shared_col;
  ChunkPlace at;
};

/// P += (X dY^T * E) dt of a head.
template <int cols>
__device__ void add_pairs(FragmentC (&P)[own_blocks][2], const GroupTiles<cols>& tiles,
                          const DecaysOf<chunk_tokens>& d, int warp, int lane) {
  for_own_blocks(warp, [&](int i, int row, int column) {
    FragmentC scores[2];
#pragma unroll 1
    for (int p = 0; p < cols; p += 16)
      add_transposed_product(scores, load_a(tiles.X, 16 * row, p, lane), tiles.dY, 16 * column, p, lane);
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int s = 16 * row + lane / 4 + k / 2 * 8, l = 16 * column + 8 * j + lane % 4 * 2 + k % 2;
        const float weighted = scores[j].v[k] * d.between(s, l) * d.dt[s];
        if (l >= s) P[i][j].v[k] += weighted;
      }
  });
}

/// sums += factor(l) tokens[l, p] state[n, p] of a head, for a warp's 16 tokens l and its rows n of the
/// state.
template <int cols, class Factor>
__device__ void add_state(FragmentC (&sums)[1][half_rows / 8], const SharedTile<cols>& tokens,
                          const SharedTile<cols>& state, int warp, int lane, Factor&& factor) {
  const int row = warp / 2 * 16, half = warp % 2 * half_rows;
  const float upper = factor(row + lane / 4), lower = factor(row + lane / 4 + 8);
#pragma unroll 1
  for (int p = 0; p < cols; p += 16) {
    const FragmentA a = scaled_rows(load_a(tokens, row, p, lane), upper, lower);
#pragma unroll
    for (int n = 0; n < half_rows / 16; ++n) {
      const FragmentB2 pair = load_b2_transposed(state, half + 16 * n, p, lane);
      mma(sums[0][2 * n], a, pair.left);
      mma(sums[0][2 * n + 1], a, pair.right);
    }
  }
}

/// sums += the products with `from` between tokens, and writes the sums: dB += P C, or dC += P^T B.
template <bool transposed, int cols>
__device__ void finish_rows(FragmentC (&sums)[1][half_rows / 8], const GroupTiles<cols>& tiles,
                            const Rows<Element>& from, const Rows<Element>& to, const GroupPart& part,
                            int warp, int lane) {
  const int row = warp / 2, half = warp % 2 * half_rows;
  __syncthreads();
  copy_tokens<chunk_tokens, group_threads>(tiles.rows, from, part.at.t0, part.at.n, part.shared_col);
  copy_async_commit();
  copy_async_wait<0>();
  __syncthreads();
#pragma unroll 1
  for (int block = transposed ? 0 : row; block < (transposed ? row + 1 : block_rows); ++block) {
    const FragmentA a[1] = {transposed ? load_a_transposed(tiles.P, 16 * block, 16 * row, lane)
                                       : load_a(tiles.P, 16 * row, 16 * block, lane)};
    add_product(sums, a, tiles.rows, 16 * block, lane, half);
  }
  __syncthreads();  // all warps are done with `rows`
  for_each_pair(sums[0], 16 * row, lane,
                [&](float a, float b, int t, int n, int) { set_pair(tiles.rows, t, half + n, a, b); });
  store_tokens<half_rows>(tiles.rows, 16 * row, to, part.at.t0, part.at.n, part.shared_col + half, lane,
                          half);
}

/// Adds what slices and parts have left, and rounds ddt_raw.
__device__ void add_slices(const Scan<Element>& scan, const BackwardTensors& g, const GroupPart& part) {
  const int heads = part.last_head - part.first_head;
  for (int i = static_cast<int>(threadIdx.x); i < part.at.n * heads; i += group_threads) {
    const std::int64_t token = part.at.t0 + i / heads;
    const int head = part.first_head + i % heads;
    float sum = 0;
    for (int slice = 0; slice < g.slices; ++slice) sum += g.ddt_sum(slice, token, head);
    g.ddt_raw.row(token)[head] = rounded<Element>(sum);
  }
  if (!g.of_slices) return;
  for (int i = static_cast<int>(threadIdx.x); i < 3 * heads; i += group_threads) {
    const int which = i / heads, head = part.first_head + i % heads;
    float sum = 0;
    for (int slice = 0; slice < g.slices; ++slice) sum += g.parameter(which, slice, part.chunk, head, scan);
    g.parameters[which][part.chunk * scan.heads + head] = sum;
  }
}

template <int cols>
__global__ void __launch_bounds__(group_threads)
    group_gradients_kernel(const Scan<Element> scan, const BackwardTensors g) {
  extern __shared__ __align__(128) char shared[];
  __shared__ DecaysOf<chunk_tokens> d;
  const GroupTiles<cols> tiles(shared);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / warp_threads;
  int lane = thread % warp_threads;
  const int parts = scan.state / state_rows;
  const StatePart rows{static_cast<int>(blockIdx.x % parts) * state_rows};
  const std::int64_t chunk = blockIdx.x / parts / scan.groups;
  const int group = static_cast<int>(blockIdx.x / parts % scan.groups), heads = scan.group_heads();
  const GroupPart part{
      chunk, group * heads, (group + 1) * heads, rows, rows.column(scan, group), place_of(scan, chunk)};
  if (part.at.n == 0) return;
  const bool has_start = !part.at.first || g.with_initial, has_end = !part.at.last;

  FragmentC P[own_blocks][2], dC[1][half_rows / 8], dB[1][half_rows / 8];
  for (int head = part.first_head; head < part.last_head; ++head) {
    const std::int64_t col = std::int64_t{head} * cols, kept = rows.kept(scan, chunk, head);
    __syncthreads();  // all warps are done with the head before
    copy_tokens<chunk_tokens, group_threads>(tiles.X, scan.x, part.at.t0, part.at.n, col, opaque(thread));
    copy_tokens<chunk_tokens, group_threads>(tiles.dY, g.dy, part.at.t0, part.at.n, col, opaque(thread));
    copy_async_commit();
    if (has_start) copy_state<group_threads>(tiles.H, g.starts + kept, cols, opaque(thread));
    if (has_end) copy_state<group_threads>(tiles.R, g.ends + kept, cols, opaque(thread));
    copy_async_commit();
    if (warp == 0) warp_load_decays(d, scan, part.at.t0, part.at.n, head);
    copy_async_wait<1>();
    __syncthreads();
    lane = opaque(lane);
    add_pairs<cols>(P, tiles, d, warp, lane);
    copy_async_wait<0>();
    __syncthreads();
    lane = opaque(lane);
    if (has_start) add_state(dC, tiles.dY, tiles.H, warp, lane, [&](int l) { return d.from_start[l]; });
    lane = opaque(lane);
    if (has_end) add_state(dB, tiles.X, tiles.R, warp, lane, [&](int s) { return d.to_end[s] * d.dt[s]; });
  }
  __syncthreads();
  for_own_blocks(warp, [&](int i, int row, int column) {
    for_each_pair(P[i], 16 * row, lane,
                  [&](float a, float b, int s, int l, int) { set_pair(tiles.P, s, 16 * column + l, a, b); });
  });
  finish_rows<true>(dC, tiles, scan.B, g.dC, part, warp, lane);
  finish_rows<false>(dB, tiles, scan.C, g.dB, part, warp, lane);
  if (g.ddt_sums.start && rows.first_row == 0) add_slices(scan, g, part);
}

}  // namespace nemocube::cuda::ssd
