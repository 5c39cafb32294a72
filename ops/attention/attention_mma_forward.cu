#include "ops/attention/attention_mma.cuh"

namespace nemocube::cuda::attention {
namespace {

template <int width>
struct ForwardTiles {
  static constexpr int rows = warps * 16 * fragments<width>, keys = 64;
  static constexpr int bytes = SharedTile<width>::bytes(rows + 2 * keys);
};

/// Turns scores into weights relative to the largest score of a row so far, in powers of two, and returns in
/// `factor` what the sums of earlier keys are multiplied by. `total` has the sums of this thread's columns.
template <int m, int n>
__device__ void softmax(FragmentC (&s)[m][n], float (&most)[2 * m], float (&total)[2 * m],
                        float (&factor)[2 * m], float scale) {
#pragma unroll
  for (int i = 0; i < 2 * m; ++i) {
    float largest = -infinity;
#pragma unroll
    for (int j = 0; j < n; ++j) largest = fmaxf(largest, fmaxf(element(s, i, j, 0), element(s, i, j, 1)));
    largest = fmaxf(most[i], warp_max<4>(largest) * scale);
    // A row that has seen no key yet has -inf everywhere; 0 stands in, to avoid inf - inf.
    const float shift = largest == -infinity ? 0 : largest;
    factor[i] = exp2_of(most[i] - shift);
    most[i] = largest;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < n; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = element(s, i, j, e);
        x = exp2_of(fmaf(x, scale, -shift));
        sum += x;
      }
    total[i] = total[i] * factor[i] + sum;
  }
}

template <int width, bool extras>
__global__ void __launch_bounds__(threads, 2) attention_forward_mma_kernel(const Forward<bf16_t> t) {
  using Tiles = ForwardTiles<width>;
  constexpr int rows = Tiles::rows, keys = Tiles::keys, m = fragments<width>;
  extern __shared__ __align__(128) char shared[];
  const SharedTile<width> q_tile(shared), k_tile(shared + SharedTile<width>::bytes(rows)),
      v_tile(shared + SharedTile<width>::bytes(rows + keys));
  const Problem& p = t.problem;
  const Lane at(warp_index() * 16 * m);
  const QueryBlock<rows> block(p);
  if (block.index < 0) return;
  KeysSeen<extras> seen(p, block.span, block.queries);  // from first_key on
  std::int64_t first_key = block.span.k_begin;
  if constexpr (extras) first_key += seen.skip_to_window(p);

  const auto copy_keys = [&](const SharedTile<width>& to, const Rows<bf16_t>& from, int ahead) {
    const int count = seen.by_some - ahead < keys ? seen.by_some - ahead : keys;
    copy_tile<keys, threads>(to, KeyRows<bf16_t>(from, first_key + ahead, count, blockIdx.y * p.head_dim),
                             p.head_dim, static_cast<int>(threadIdx.x));
  };
  copy_tile<rows, threads>(q_tile, block.rows_in(t.q, p.head_dim), p.head_dim, static_cast<int>(threadIdx.x));
  if (seen.by_some > 0) copy_keys(k_tile, t.k, 0);
  copy_async_commit();

  FragmentC o[m][width / 8];
  float most[2 * m], total[2 * m], factor[2 * m];
  // A result over other keys is the sum over one key with the score lse and the value o.
#pragma unroll
  for (int i = 0; i < 2 * m; ++i) {
    const float* const lse = t.add ? block.rows_in(t.lse, 1)(at.row(i)) : nullptr;
    most[i] = lse ? *lse * log2_e : -infinity;
    total[i] = most[i] == -infinity || at.column != 0 ? 0 : 1;  // once among the four threads of a row
    if (!lse) continue;
    const auto load = [&](const auto& o_rows) {
#pragma unroll
      for (int j = 0; j < width / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (const int c = 8 * j + at.column + e; c < p.head_dim)
            element(o, i, j, e) = to_float(o_rows(at.row(i))[c]);
    };
    if (t.o.exact)
      load(block.rows_in(t.o.exact, p.head_dim));
    else
      load(block.rows_in(t.o.rounded, p.head_dim));
  }

  RowScores rows_of_thread[extras ? 2 * m : 1];
  if constexpr (extras)
#pragma unroll
    for (int i = 0; i < 2 * m; ++i)
      rows_of_thread[i] = RowScores(p, block.span, block.queries, static_cast<int>(blockIdx.y), at.row(i));
  for (; seen.by_some > 0; first_key += keys, seen.skip(keys)) {
    copy_async_wait<0>();
    __syncthreads();  // K is there, and nobody reads V any more
    copy_keys(v_tile, t.v, 0);
    copy_async_commit();
    FragmentC s[m][keys / 8];
    multiply(s, q_tile, k_tile, at);
    if constexpr (extras)
      change_scores(
          s, rows_of_thread, p, at, [&](int i) { return seen.distance_of(block.queries, anew(at.row(i))); },
          [](float score, int, float) { return score; });
    if (seen.some_hidden(p, block.queries, keys)) {
      hide(s, seen, block.queries, -infinity, at);
      if (extras && p.window > 0) hide_before(s, seen, block.queries, p.window, -infinity, at);
    }
    softmax(s, most, total, factor, extras ? 1 : p.scale * log2_e);
#pragma unroll
    for (int i = 0; i < 2 * m; ++i)
#pragma unroll
      for (int j = 0; j < width / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) element(o, i, j, e) *= factor[i];
    copy_async_wait<0>();
    __syncthreads();  // V is there, and nobody reads K any more
    if (seen.by_some > keys) copy_keys(k_tile, t.k, keys);
    copy_async_commit();
    add_weighted<width>(o, s, v_tile, at);
  }
  copy_async_wait<0>();
  __syncthreads();

  const QueryBlock<rows> place(p);
  if (at.warp_row >= place.queries.count) return;
  const auto lse_rows = place.rows_in(t.lse, 1);
#pragma unroll
  for (int i = 0; i < 2 * m; ++i) {
    total[i] = warp_sum<4>(total[i]);
    factor[i] = total[i] == 0 ? 0 : 1 / total[i];
    if (float* const lse = lse_rows(at.row(i)); lse && at.column == 0)
      *lse = ln_2 * (most[i] + log2f(total[i]));
  }
  store<width>(
      o, q_tile, t.o, [&](const auto& to) { return place.rows_in(to, p.head_dim); }, factor, p.head_dim,
      false, at);
}

}  // namespace

bool forward_by_mma(const Forward<bf16_t>& t) {
  return t.aligned && visit_kernel(t.problem, [&](auto width, auto extras) {
           using Tiles = ForwardTiles<width>;
           launch_shared("attention forward", attention_forward_mma_kernel<width, extras>,
                         grid_of_queries(t.problem, Tiles::rows), threads, Tiles::bytes, t);
         });
}

}  // namespace nemocube::cuda::attention
