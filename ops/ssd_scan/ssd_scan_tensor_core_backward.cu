#include "ops/ssd_scan/ssd_scan_group_gradients.cuh"
#include "ops/ssd_scan/ssd_scan_tensor_core_backward.cuh"

// Backward on tensor cores: two kernels. The first has a block for each segment and head, or for half of the
// head's channels where there are few segments and heads. The block walks from the last piece to the first
// with R, the gradient of the state, in registers. Where sequences have several segments, two kernels before
// it form R between segments (ssd_scan_segments.cuh). It forms the gradients of x, dt_raw and the parameters,
// and leaves R at the end of every chunk. It is launched for each part of the states. The second has a block
// for each chunk, group and part, which sums the gradients of B and C over the heads of the group in their
// order, and adds what the halves have (ssd_scan_group_gradients.cuh).
namespace nemocube::cuda::ssd {
namespace {

template <int cols>
struct WalkTiles {
  static constexpr int shared_rows = SharedTile<state_rows>::bytes(piece),
                       channels = SharedTile<cols>::bytes(piece), state = SharedTile<cols>::bytes(state_rows);
  static constexpr std::size_t bytes = 2 * (shared_rows + channels + state);
  SharedTile<state_rows> B, C;
  SharedTile<cols> X, dY, H, R;
  __device__ explicit WalkTiles(char* at)
      : B(at),
        C(at + shared_rows),
        X(at + 2 * shared_rows),
        dY(at + 2 * shared_rows + channels),
        H(at + 2 * (shared_rows + channels)),
        R(at + 2 * (shared_rows + channels) + state) {}
};

/// What each token's da and ddt are summed from.
struct TokenSums {
  float crossing[piece];  // products between two tokens of 16 that cross to this one, and see pair_block
  float of_column[walk_warps]
                 [piece];      // sums of W over 16 rows; zero where these do not lie before the column's 16
  float through_start[piece];  // the term through the state at the start
  float through_end[piece];    // the term through the state at the end
  float ddt[piece];            // gradient of dt as the factor of x
  float skip[piece];           // x dy
  float across[walk_warps];
};

/// The sum over the threads of a warp that have the same rows of fragments.
__device__ inline float row_sum(float x) { return warp_sum<4>(x); }

/// Sums of four values over the threads of a warp that have the same columns of fragments. The thread gets
/// that of the value number lane / 4 % 4, with the bits of this number exchanged.
__device__ inline float column_sum(const float (&v)[4], int lane) {
  const bool second = lane & 4, odd = lane & 8;
  const float a = (second ? v[2] : v[0]) + __shfl_xor_sync(whole_warp, second ? v[0] : v[2], 4);
  const float b = (second ? v[3] : v[1]) + __shfl_xor_sync(whole_warp, second ? v[1] : v[3], 4);
  const float sum = (odd ? b : a) + __shfl_xor_sync(whole_warp, odd ? a : b, 8);
  return sum + __shfl_xor_sync(whole_warp, sum, 16);
}

/// For values of the rows of a fragment, upper = row lane / 4 and lower = that + 8: their sums over the rows
/// before.
__device__ inline void sum_rows_before(float& upper, float& lower, int lane) {
  const auto running = [&](float x) {
#pragma unroll
    for (int distance = 4; distance < warp_threads; distance *= 2) {
      const float before = __shfl_up_sync(whole_warp, x, distance);
      if (lane >= distance) x += before;
    }
    return x;
  };
  const auto before = [&](float sum) {
    const float x = __shfl_up_sync(whole_warp, sum, 4);
    return lane < 4 ? 0 : x;
  };
  const float sum = running(upper), total = __shfl_sync(whole_warp, sum, 28 + lane % 4);
  upper = before(sum);
  lower = total + before(running(lower));
}

/// The gradients between the tokens of a piece, of a warp's 16 rows s and all columns l:
///   q += (B C^T * E) dY,   W = (X dY^T * E) dt * B C^T,   and what da and ddt receive from W.
/// crossing[t] gets the sum of W[s, l] over s < t <= l for the rows s of the same warp.
template <int cols>
__device__ void token_pairs(FragmentC (&q)[1][cols / 8], float (&direct)[2], TokenSums& sums,
                            const WalkTiles<cols>& tiles, const Decays& d, int warp, int lane) {
  float later[2] = {};        // sums of W over this thread's columns behind the diagonal block
  float diagonal[4][2] = {};  // W of the diagonal block: this thread's columns, upper and lower row
  for (int l = lane; l < 16 * (warp + 1); l += warp_threads) sums.of_column[warp][l] = 0;
#pragma unroll 1
  for (int block = warp; block < walk_warps; ++block) {
    lane = opaque(lane);
    FragmentC products[2], W[2];
#pragma unroll 4
    for (int n = 0; n < state_rows; n += 16)
      add_transposed_product(products, load_a(tiles.B, 16 * warp, n, lane), tiles.C, 16 * block, n, lane);
#pragma unroll
    for (int p = 0; p < cols; p += 16)
      add_transposed_product(W, load_a(tiles.X, 16 * warp, p, lane), tiles.dY, 16 * block, p, lane);
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int s = 16 * warp + lane / 4 + i / 2 * 8, l = 16 * block + 8 * j + lane % 4 * 2 + i % 2;
        const float product = products[j].v[i], score = W[j].v[i];
        if (s == l) sums.skip[s] = score;
        // Formed for all elements and then masked, so that nothing branches.
        const float decayed = product * d.between(s, l), weighted = decayed * score,
                    with_step = weighted * d.dt[s];
        products[j].v[i] = l >= s ? decayed : 0;
        direct[i / 2] += l >= s ? weighted : 0;
        W[j].v[i] = l >= s ? with_step : 0;
      }
    const FragmentA masked[1] = {fragment_a(products[0], products[1])};
    add_product(q, masked, tiles.dY, 16 * block, lane);
    if (block == warp) {
#pragma unroll
      for (int column = 0; column < 4; ++column)
#pragma unroll
        for (int row = 0; row < 2; ++row) diagonal[column][row] = W[column / 2].v[2 * row + column % 2];
    } else {
      float columns[4];
#pragma unroll
      for (int column = 0; column < 4; ++column) {
        const float upper = W[column / 2].v[column % 2], lower = W[column / 2].v[2 + column % 2];
        columns[column] = upper + lower;
        later[0] += upper;
        later[1] += lower;
      }
      const float sum = column_sum(columns, lane);
      const int column = (lane & 4 ? 2 : 0) + (lane & 8 ? 1 : 0);
      if (lane < 16) sums.of_column[warp][16 * block + column / 2 * 8 + lane % 4 * 2 + column % 2] = sum;
    }
  }
  // All columns behind the diagonal block cross to every row t of the block, from its rows before t.
  float crossing[2] = {later[0], later[1]};
  sum_rows_before(crossing[0], crossing[1], lane);
#pragma unroll
  for (int column = 0; column < 4; ++column) {
    float upper = diagonal[column][0], lower = diagonal[column][1];
    sum_rows_before(upper, lower, lane);
    const int l = column / 2 * 8 + lane % 4 * 2 + column % 2;
    if (l >= lane / 4) crossing[0] += upper;
    if (l >= lane / 4 + 8) crossing[1] += lower;
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float sum = row_sum(crossing[row]);
    if (lane % 4 == 0) sums.crossing[16 * warp + lane / 4 + 8 * row] = sum;
  }
}

/// In a warp, for values of the tokens 2 lane and 2 lane + 1: their sums over this token and those after it.
__device__ inline void sum_from_here(float (&x)[2], int lane) {
  float sum = x[0] + x[1];
#pragma unroll
  for (int distance = 1; distance < warp_threads; distance *= 2) {
    const float after = __shfl_down_sync(whole_warp, sum, distance);
    if (lane + distance < warp_threads) sum += after;
  }
  const float after = __shfl_down_sync(whole_warp, sum, 1);
  x[1] += lane + 1 < warp_threads ? after : 0;
  x[0] += x[1];
}
/// The same over the tokens before this one.
__device__ inline void sum_before(float (&x)[2], int lane) {
  float sum = x[0] + x[1];
#pragma unroll
  for (int distance = 1; distance < warp_threads; distance *= 2) {
    const float before = __shfl_up_sync(whole_warp, sum, distance);
    if (lane >= distance) sum += before;
  }
  const float before = __shfl_up_sync(whole_warp, sum, 1);
  const float first = x[0];
  x[0] = lane > 0 ? before : 0;
  x[1] = x[0] + first;
}

/// Sums over a chunk, of the tokens 2 lane and 2 lane + 1 of each piece.
struct ChunkSums {
  float decay = 0, bias = 0, skip = 0;
};

/// One warp: gradients of dt_raw of a piece, and its part of the chunk's sums. `across` crosses the whole
/// piece.
__device__ void finish_decays(ChunkSums& chunk, const Scan<Element>& scan, const BackwardTensors& g,
                              std::int64_t t0, int n, int head, int slice, const Decays& d,
                              const TokenSums& sums, float across, int lane) {
  const int t = 2 * lane;
  const float rate = scan.rate(head);
  float started[2] = {sums.through_start[t], sums.through_start[t + 1]};
  sum_from_here(started, lane);
  float ended[2] = {sums.through_end[t], sums.through_end[t + 1]};
  sum_before(ended, lane);
  float da[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) da[i] = sums.crossing[t + i] + across + ended[i] + started[i];
#pragma unroll
  for (int rows = 0; rows + 1 < walk_warps; ++rows) {
    float crossing[2] = {sums.of_column[rows][t], sums.of_column[rows][t + 1]};
    sum_from_here(crossing, lane);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (rows < t / 16) da[i] += crossing[i];
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (t + i >= n) continue;
    const float v = d.raw[t + i], soft = softplus(v);
    const bool inside = soft >= scan.dt_min && soft <= scan.dt_max;
    const float ddt = inside ? (sums.ddt[t + i] + rate * da[i]) * softplus_grad(v) : 0;
    if (!g.ddt_sums.start) {
      g.ddt_raw.row(t0 + t + i)[head] = rounded<Element>(ddt);
    } else {
      float& sum = g.ddt_sum(slice, t0 + t + i, head);
      sum = g.part.first ? ddt : sum + ddt;
    }
    chunk.decay += da[i] * d.dt[t + i];
    chunk.bias += ddt;
    chunk.skip += sums.skip[t + i];
  }
}

template <int cols, int slices>
__global__ void __launch_bounds__(walk_threads)
    walk_backward_kernel(const Scan<Element> scan, const BackwardTensors g) {
  extern __shared__ __align__(128) char shared[];
  __shared__ Decays d, before;  // of a piece and the one before it
  __shared__ TokenSums sums;
  const WalkTiles<cols> tiles(shared);
  const int warp = static_cast<int>(threadIdx.x) / warp_threads;
  int lane = static_cast<int>(threadIdx.x) % warp_threads;
  const int slice = static_cast<int>(blockIdx.x % slices);
  const int head = static_cast<int>(blockIdx.x / slices % scan.heads), group = head / scan.group_heads();
  const std::int64_t segment = blockIdx.x / slices / scan.heads;
  const SegmentPlace at = place_of_segment(scan, segment);
  const std::int64_t begin = at.begin, end = at.end;
  const std::int64_t shared_col = g.part.column(scan, group),
                     col = std::int64_t{head} * scan.head_dim + slice * cols;
  if (begin == end) return;  // as where there is no such segment
  const float skip = g.part.first ? scan.D[head] : 0;
  const int row = 16 * warp + lane / 4;  // of the thread's upper elements

  State<cols> r;
  if (!at.last) r.read(g.segments.state(scan, segment + 1, head, slice * cols), warp, lane);
  ChunkSums chunk_sums;
  for (std::int64_t t0 = begin + (end - begin - 1) / piece * piece; t0 >= begin; t0 -= piece) {
    const int n = static_cast<int>(end - t0 < piece ? end - t0 : piece);
    const bool has_start = t0 > begin || !at.first || g.with_initial, has_end = t0 + piece < end || !at.last;
    const bool second = (t0 - begin) % chunk_tokens != 0;  // piece of its chunk
    const bool last_of_chunk = second || !has_end;
    const std::int64_t chunk = at.first_chunk + (t0 - begin) / chunk_tokens;
    const std::int64_t kept = g.part.kept(scan, chunk, head) + slice * cols;

    lane = opaque(lane);
    const int thread = opaque(static_cast<int>(threadIdx.x));
    __syncthreads();  // all warps are done with the tiles
    copy_state<walk_threads>(tiles.H, g.starts + kept, scan.head_dim, thread);
    if (second) {
      copy_tokens<piece, walk_threads>(tiles.B, scan.B, t0 - piece, piece, shared_col, thread);
      copy_tokens<piece, walk_threads>(tiles.X, scan.x, t0 - piece, piece, col, thread);
    }
    copy_async_commit();
    copy_tokens<piece, walk_threads>(tiles.C, scan.C, t0, n, shared_col, thread);
    copy_tokens<piece, walk_threads>(tiles.dY, g.dy, t0, n, col, thread);
    copy_async_commit();
    if (warp == 0) warp_load_decays(d, scan, t0, n, head);
    if (second) {
      // The state at the start of the piece, from that at the start of the chunk.
      if (warp == 1) warp_load_decays(before, scan, t0 - piece, piece, head);
      copy_async_wait<1>();
      __syncthreads();
      State<cols> h;
      h.load(tiles.H, before.whole, warp, lane);
      h.add(tiles.B, tiles.X, warp, lane, [&](int s) { return before.to_end[s] * before.dt[s]; });
      h.store(tiles.H, warp, lane);  // the rows that this warp has read
      __syncthreads();
    }
    copy_tokens<piece, walk_threads>(tiles.B, scan.B, t0, n, shared_col, thread);
    copy_tokens<piece, walk_threads>(tiles.X, scan.x, t0, n, col, thread);
    copy_async_commit();
    r.store(tiles.R, warp, lane);
    copy_async_wait<0>();
    __syncthreads();
    if (has_end && second) keep_state<walk_threads>(g.ends + kept, scan.head_dim, tiles.R);

    // The term through the state at the start: dY (C H).
    lane = opaque(lane);
    float through_start[2] = {};
    if (has_start) {
      FragmentC out[1][cols / 8];
#pragma unroll 2
      for (int k = 0; k < state_rows; k += 16) {
        const FragmentA c[1] = {load_a(tiles.C, 16 * warp, k, lane)};
        add_product(out, c, tiles.H, k, lane);
      }
      for_each_pair(out[0], 16 * warp, lane, [&](float a, float b, int l, int p, int i) {
        const float2 dy = pair_at(tiles.dY, l, p);
        through_start[i] += a * dy.x + b * dy.y;
      });
    }

    // Q = to_end (B R) + (B C^T * E) dY
    lane = opaque(lane);
    FragmentC q[1][cols / 8];
    float through_end[2] = {}, direct[2] = {};
    if (has_end) {
#pragma unroll 2
      for (int k = 0; k < state_rows; k += 16) {
        const FragmentA b[1] = {load_a(tiles.B, 16 * warp, k, lane)};
        add_product(q, b, tiles.R, k, lane);
      }
      const float to_end[2] = {d.to_end[row], d.to_end[row + 8]};
      for_each_pair(q[0], 16 * warp, lane, [&](float& a, float& b, int s, int p, int i) {
        a *= to_end[i];
        b *= to_end[i];
        const float2 x = pair_at(tiles.X, s, p);
        through_end[i] += a * x.x + b * x.y;
      });
    }
    token_pairs<cols>(q, direct, sums, tiles, d, warp, lane);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = row + 8 * i;
      const float start = row_sum(through_start[i]), ended = row_sum(through_end[i]),
                  within = row_sum(direct[i]);
      if (lane % 4 == 0) {
        sums.through_start[t] = d.from_start[t] * start;
        sums.through_end[t] = d.dt[t] * ended;
        sums.ddt[t] = ended + within;
      }
    }
    lane = opaque(lane);
    float across = 0;
    if (has_start && has_end)
      r.for_each_pair(warp, lane, [&](float a, float b, int k, int p) {
        const float2 h = pair_at(tiles.H, k, p);
        across += a * h.x + b * h.y;
      });
    across = warp_sum(across);
    if (lane == 0) sums.across[warp] = across;

    // dX = dt Q + D dY, by way of the rows of X that the warp has; they have been read.
    __syncwarp();
    lane = opaque(lane);
    for_each_pair(q[0], 16 * warp, lane, [&](float& a, float& b, int s, int p, int) {
      const float2 dy = pair_at(tiles.dY, s, p);
      const float dt = d.dt[s];
      a = fmaf(dt, a, skip * dy.x);
      b = fmaf(dt, b, skip * dy.y);
    });
    if (!g.part.first || !g.part.last)
      for_each_pair(q[0], 16 * warp, lane, [&](float& a, float& b, int s, int p, int) {
        sum_of_parts(g.dx_sums, g.part, a, b, t0 + s, s < n, col + p);
      });
    for_each_pair(q[0], 16 * warp, lane,
                  [&](float a, float b, int s, int p, int) { set_pair(tiles.X, s, p, a, b); });
    if (g.part.last) store_tokens<cols>(tiles.X, 16 * warp, g.dx, t0, n, col, lane);

    __syncthreads();  // `sums` are complete
    if (warp == walk_warps - 1) {
      float total = 0;
      for (const float part : sums.across) total += part;
      if (last_of_chunk) chunk_sums = {};
      finish_decays(chunk_sums, scan, g, t0, n, head, slice, d, sums, d.whole * total, lane);
      if (!second) {
        const float decay = warp_sum(chunk_sums.decay), bias = warp_sum(chunk_sums.bias),
                    skip_sum = warp_sum(chunk_sums.skip);
        if (lane == 0) {
          const auto add = [&](ScanParameter which, float sum) {
            float& to = g.parameter(which, slice, chunk, head, scan);
            to = g.part.first ? sum : to + sum;
          };
          add(A_log, scan.rate(head) * decay);
          add(dt_bias, bias);
          if (g.part.first) add(D, skip_sum);
        }
      }
    }
    if (t0 == begin) return;
    r.scale(d.whole);
    r.add(tiles.C, tiles.dY, warp, lane, [&](int l) { return d.from_start[l]; });
  }
}

template <int head_dim, int slices>
void launch_backward(const Scan<Element>& scan, BackwardTensors g) {
  constexpr int cols = head_dim / slices;
  for_parts(scan, [&](const StatePart& part) {
    g.part = part;
    form_segment_states<cols, true>(scan, g.dy, part, nullptr, g.segments);
    launch_shared("ssd_scan backward", walk_backward_kernel<cols, slices>,
                  blocks_for(scan.segments * scan.heads * slices, 1), walk_threads, WalkTiles<cols>::bytes,
                  scan, g);
  });
  launch_shared("ssd_scan gradients of B and C", group_gradients_kernel<head_dim>,
                blocks_for(scan.chunks * scan.groups * (scan.state / state_rows), 1), group_threads,
                GroupTiles<head_dim>::bytes, scan, g);
}

}  // namespace

void tensor_core_backward(const SsdProblem& problem, const SsdGradients& gradients, const Tensor& dy,
                          const Tensor& chunk_starts) {
  if (problem.chunks.count == 0) return;
  SsdProblem aligned = problem;
  for (Tensor* t : {&aligned.x, &aligned.B, &aligned.C}) *t = aligned_operand(*t);
  const Tensor aligned_dy = aligned_operand(dy);
  const AlignedOutput dx(gradients.x), dB(gradients.B), dC(gradients.C);
  const Tensor ends = Tensor::empty(chunk_starts.shape(), DType::bf16, dy.device());
  const Scan<Element> scan(aligned);
  // Slices where whole heads would be fewer blocks than there are multiprocessors. 80 channels have no halves
  // that products on tensor cores can sum over.
  const int slices =
      scan.head_dim == 64 && scan.segments * scan.heads < device_limits().multiprocessors ? 2 : 1;
  const auto scratch = [&](bool wanted, const Shape& shape) {
    return wanted ? Tensor::empty(shape, DType::f32, dy.device()) : Tensor();
  };
  const bool parts = scan.state > state_rows;
  const std::int64_t tokens = dy.rows();
  const Tensor of_slices = scratch(slices > 1, {3, slices, scan.chunks, scan.heads}),
               ddt_sums = scratch(parts || slices > 1, {slices * tokens, scan.heads}),
               dx_sums = scratch(parts, dy.shape());
  const SegmentMemory segments(scan, dy.device());
  const BackwardTensors g{.dy = rows_of<Element>(aligned_dy),
                          .starts = data_of<Element>(chunk_starts),
                          .ends = data_of<Element>(ends),
                          .with_initial = problem.initial_state.defined(),
                          .dx = rows_of<Element>(dx.get()),
                          .ddt_raw = rows_of<Element>(gradients.dt_raw),
                          .dB = rows_of<Element>(dB.get()),
                          .dC = rows_of<Element>(dC.get()),
                          .parameters = {data_of<float>(gradients.A_log), data_of<float>(gradients.D),
                                         data_of<float>(gradients.dt_bias)},
                          .slices = slices,
                          .of_slices = of_slices ? data_of<float>(of_slices) : nullptr,
                          .ddt_sums = rows_of<float>(ddt_sums),
                          .dx_sums = rows_of<float>(dx_sums),
                          .segments = segments.get(),
                          .part = {},
                          .tokens = tokens};
  if (scan.head_dim == 80)
    launch_backward<80, 1>(scan, g);
  else
    slices == 2 ? launch_backward<64, 2>(scan, g) : launch_backward<64, 1>(scan, g);
  for (const AlignedOutput* out : {&dx, &dB, &dC}) out->finish();
}

}  // namespace nemocube::cuda::ssd
