#include "ops/gated_delta_rule/gated_delta_rule_tensor_core.cuh"

// Forward on tensor cores, in the kernels of gated_delta_rule_forward.cu. Blocks that walk along a sequence
// have slices of the columns of a state, in registers; slices change no bit.
namespace nemocube::cuda::delta_rule {
namespace {

struct ForwardTensors {
  Rows<float> inverses;
  Rows<float> U0;        // [T, value_heads * 128]: (I + A)^-1 beta V
  Rows<Element> U, W;    // [T, value_heads * 128]; W: (I + A)^-1 beta from_start K
  Rows<float> factors;   // [T, value_heads]: of rows of k in the state at the end
  float* whole;          // [chunks, value_heads]
  float* starts;         // [chunks, value_heads, 128, 128]
  const float* initial;  // may be null
  float* final;          // may be null
  Rows<Element> o;
};

struct SolveTiles {
  static constexpr std::size_t bytes = 2 * row_tile_bytes + sizeof(PairTile) + sizeof(HeadTokens);
  RowTile K, V;
  PairTile& inverse;
  HeadTokens& tokens;
  __device__ explicit SolveTiles(char* at)
      : K(at),
        V(at + row_tile_bytes),
        inverse(*reinterpret_cast<PairTile*>(at + 2 * row_tile_bytes)),
        tokens(*reinterpret_cast<HeadTokens*>(at + 2 * row_tile_bytes + sizeof(PairTile))) {}
};

__global__ void __launch_bounds__(solve_threads)
    solve_kernel(const Rule<Element> rule, const ForwardTensors f) {
  extern __shared__ __align__(128) char shared[];
  const SolveTiles tiles(shared);
  HeadTokens& t = tiles.tokens;
  const HeadPart<Element> part = part_of_block(rule);
  const ChunkPlace& at = part.at;
  if (at.n == 0) return;
  const int warp = static_cast<int>(threadIdx.x) / warp_threads,
            lane = static_cast<int>(threadIdx.x) % warp_threads;
  mma_chunks::copy_tokens<piece, solve_threads>(tiles.K, rule.k, at.t0, at.n,
                                                column_of(part.head / rule.own_heads()));
  copy_async_commit();
  mma_chunks::copy_tokens<piece, solve_threads>(tiles.V, rule.v, at.t0, at.n, column_of(part.head));
  copy_async_commit();
  if (warp == 0) warp_load_tokens(t, rule, f.inverses, at, part.head);
  copy_async_wait<1>();
  __syncthreads();
  set_system(tiles.inverse, tiles.K, t, warp, lane);
  copy_async_wait<0>();
  __syncthreads();
  invert(tiles.inverse, at.n);
  __syncthreads();

  const int row = warp % 4 * 16, col = warp / 4 * 64;
  {
    FragmentC sums[1][8];
    add_solution(sums, tiles.inverse, tiles.V, row, col, lane, [&](int s) { return t.beta[s]; });
    for_each_pair(sums[0], row, lane, [&](float a, float b, int l, int c, int) {
      if (l < at.n)
        *reinterpret_cast<float2*>(f.U0.row(at.t0 + l) + column_of(part.head) + col + c) = make_float2(a, b);
    });
  }
  if (static_cast<int>(threadIdx.x) < at.n) {
    const int l = static_cast<int>(threadIdx.x);
    f.factors.row(at.t0 + l)[part.head] = t.to_end[l] * t.k[l];
  }
  if (threadIdx.x == 0) f.whole[blockIdx.x] = t.whole;
  if (at.first && !f.initial) return;  // nobody reads W
  FragmentC sums[1][8];
  add_solution(sums, tiles.inverse, tiles.K, row, col, lane,
               [&](int s) { return t.beta[s] * t.from_start[s] * t.k[s]; });
  __syncthreads();  // all warps are done with V
  for_each_pair(sums[0], row, lane,
                [&](float a, float b, int l, int c, int) { set_pair(tiles.V, l, col + c, a, b); });
  mma_chunks::store_tokens<64>(tiles.V, row, f.W, at.t0, at.n, column_of(part.head) + col, lane, col);
}

constexpr int walk_threads = mma_chunks::walk_threads;

/// W and K have two stages: while a chunk is worked on, those of the next one are copied to the other stage.
template <int cols>
struct StateTiles {
  static constexpr int states = SharedTile<cols>::bytes(dim), values = SharedTile<cols>::bytes(piece);
  static constexpr std::size_t bytes = 4 * row_tile_bytes + states + values;
  RowTile W, K;
  SharedTile<cols> S, U;
  __device__ StateTiles(char* at, int stage)
      : W(at + 2 * stage * row_tile_bytes),
        K(at + (2 * stage + 1) * row_tile_bytes),
        S(at + 4 * row_tile_bytes),
        U(at + 4 * row_tile_bytes + states) {}
};

/// A block has one sequence and head, and a slice of the state.
template <int cols>
__global__ void __launch_bounds__(walk_threads)
    states_kernel(const Rule<Element> rule, const ForwardTensors f) {
  extern __shared__ __align__(128) char shared[];
  __shared__ float factors[2][piece], whole[2];  // of the two stages
  constexpr int slices = dim / cols;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / warp_threads,
            lane = thread % warp_threads;
  const int col = static_cast<int>(blockIdx.x % slices) * cols,
            head = static_cast<int>(blockIdx.x / slices % rule.value_heads);
  const std::int64_t sequence = blockIdx.x / slices / rule.value_heads;
  const std::int64_t begin = rule.first_chunk[sequence], end = rule.first_chunk[sequence + 1];
  mma_chunks::State<cols> state;
  if (f.initial) load_state(state, state_at(f.initial, rule, sequence, head), col, warp, lane);
  const auto has_state = [&](std::int64_t chunk) { return chunk > begin || f.initial; };

  float next_factor = 0, next_whole = 0;
  const auto begin_copies = [&](std::int64_t chunk) {
    if (chunk >= end) return;
    const StateTiles<cols> tiles(shared, static_cast<int>((chunk - begin) % 2));
    const ChunkPlace at = place_of(rule, sequence, chunk);
    if (has_state(chunk))
      mma_chunks::copy_tokens<piece, walk_threads>(tiles.W, f.W, at.t0, at.n, column_of(head));
    mma_chunks::copy_tokens<piece, walk_threads>(tiles.K, rule.k, at.t0, at.n,
                                                 column_of(head / rule.own_heads()));
    copy_async_commit();
    next_factor = thread < at.n ? f.factors.row(at.t0 + thread)[head] : 0;
    next_whole = f.whole[chunk * rule.value_heads + head];
  };
  const auto set_factors = [&](std::int64_t chunk) {
    if (chunk >= end) return;
    const int stage = static_cast<int>((chunk - begin) % 2);
    if (thread < piece) factors[stage][thread] = next_factor;
    if (thread == 0) whole[stage] = next_whole;
  };
  begin_copies(begin);
  set_factors(begin);
  for (std::int64_t chunk = begin; chunk < end; ++chunk) {
    const int stage = static_cast<int>((chunk - begin) % 2);
    const StateTiles<cols> tiles(shared, stage);
    const ChunkPlace at = place_of(rule, sequence, chunk);
    __syncthreads();  // all warps are done with the chunk before
    if (has_state(chunk)) state.store(tiles.S, warp, lane);
    store_state(state, state_at(f.starts, rule, chunk, head), col, warp, lane);
    copy_async_wait<0>();
    __syncthreads();
    begin_copies(chunk + 1);

    // A warp's 16 rows of U.
    FragmentC u[1][cols / 8];
    if (has_state(chunk))
#pragma unroll 2
      for (int i = 0; i < dim; i += 16) {
        const FragmentA w[1] = {load_a(tiles.W, 16 * warp, i, lane)};
        mma_chunks::add_product(u, w, tiles.S, i, lane);
      }
    for_each_pair(u[0], 16 * warp, lane, [&](float a, float b, int l, int c, int) {
      float2 v = make_float2(0, 0);
      if (l < at.n) v = *reinterpret_cast<const float2*>(f.U0.row(at.t0 + l) + column_of(head) + col + c);
      set_pair(tiles.U, l, c, v.x - a, v.y - b);
    });
    mma_chunks::store_tokens<cols>(tiles.U, 16 * warp, f.U, at.t0, at.n, column_of(head) + col, lane);
    set_factors(chunk + 1);
    if (chunk + 1 == end && !f.final) return;
    __syncthreads();  // U is complete
    state.scale(whole[stage]);
    state.add(tiles.K, tiles.U, warp, lane, [&](int l) { return factors[stage][l]; });
  }
  if (f.final) store_state(state, state_at(f.final, rule, sequence, head), col, warp, lane);
}

constexpr int output_warps = piece / 16, output_threads = output_warps * warp_threads;

struct OutputTiles {
  static constexpr std::size_t bytes = 3 * row_tile_bytes + RowTile::bytes(dim);
  RowTile Q, K, U, S;
  __device__ explicit OutputTiles(char* at)
      : Q(at), K(at + row_tile_bytes), U(at + 2 * row_tile_bytes), S(at + 3 * row_tile_bytes) {}
};

__global__ void __launch_bounds__(output_threads)
    outputs_kernel(const Rule<Element> rule, const ForwardTensors f) {
  extern __shared__ __align__(128) char shared[];
  __shared__ HeadTokens t;
  const OutputTiles tiles(shared);
  const HeadPart<Element> part = part_of_block(rule);
  const ChunkPlace& at = part.at;
  if (at.n == 0) return;
  const int warp = static_cast<int>(threadIdx.x) / warp_threads;
  int lane = static_cast<int>(threadIdx.x) % warp_threads;
  const std::int64_t key_col = column_of(part.head / rule.own_heads()), col = column_of(part.head);
  mma_chunks::copy_tokens<piece, output_threads>(tiles.Q, rule.q, at.t0, at.n, key_col);
  mma_chunks::copy_tokens<piece, output_threads>(tiles.K, rule.k, at.t0, at.n, key_col);
  mma_chunks::copy_tokens<piece, output_threads>(tiles.U, f.U, at.t0, at.n, col);
  copy_async_commit();
  const bool has_state = f.initial || !at.first;
  if (has_state)
    round_state<output_threads>(tiles.S, state_at(f.starts, rule, blockIdx.x / rule.value_heads, part.head));
  if (warp == 0) warp_load_tokens(t, rule, f.inverses, at, part.head);
  copy_async_wait<0>();
  __syncthreads();

  // A warp's 16 rows: from_start Q S + P U. The blocks of P above the diagonal are not used; branches around
  // them would cost more.
  FragmentC out[1][dim / 8], products[output_warps][2];
#pragma unroll 2
  for (int i = 0; i < dim; i += 16) {
    const FragmentA q[1] = {load_a(tiles.Q, 16 * warp, i, lane)};
    if (has_state) mma_chunks::add_product(out, q, tiles.S, i, lane);
#pragma unroll
    for (int block = 0; block < output_warps; ++block)
      mma_chunks::add_transposed_product(products[block], q[0], tiles.K, 16 * block, i, lane);
  }
  lane = mma_chunks::opaque(lane);
  for_each_pair(out[0], 16 * warp, lane, [&](float& a, float& b, int l, int, int) {
    const float factor = t.from_start[l] * t.q[l];
    a *= factor;
    b *= factor;
  });
#pragma unroll
  for (int block = 0; block < output_warps; ++block)
    if (block <= warp) {
      for_each(products[block], 16 * warp, 16 * block, lane, [&](float& v, int l, int s) {
        const float decayed = t.q[l] * t.k[s] * v * t.between(s, l);
        v = s <= l ? decayed : 0;
      });
      const FragmentA P[1] = {fragment_a(products[block][0], products[block][1])};
      mma_chunks::add_product(out, P, tiles.U, 16 * block, lane);
    }
  // The rows of Q that the warp has are its own, and all its threads have read them.
  __syncwarp();
  for_each_pair(out[0], 16 * warp, lane,
                [&](float a, float b, int l, int c, int) { set_pair(tiles.Q, l, c, a, b); });
  mma_chunks::store_tokens<dim>(tiles.Q, 16 * warp, f.o, at.t0, at.n, col, lane);
}

}  // namespace

void tensor_core_forward(const DeltaRuleProblem& problem, const Tensor& o, const DeltaRuleStates& states) {
  const DeltaRuleProblem aligned = aligned_problem(problem);
  const mma_chunks::AlignedOutput out(o);
  const Rule<Element> rule(aligned);
  if (rule.sequences == 0) return;
  const std::int64_t tokens = o.rows(), heads = rule.value_heads;
  const auto working = [&](const Shape& shape, DType dtype) {
    return Tensor::empty(shape, dtype, o.device());
  };
  const Tensor starts =
      states.chunk_starts ? states.chunk_starts : working({rule.chunks, heads, dim, dim}, DType::f32);
  const Tensor U0 = working({tokens, heads * dim}, DType::f32),
               U = working({tokens, heads * dim}, DType::bf16),
               W = working({tokens, heads * dim}, DType::bf16),
               factors = working({tokens, heads}, DType::f32),
               whole = working({rule.chunks, heads}, DType::f32);
  const Tensor inverses = form_inverses(rule, aligned.q, aligned.k);
  const ForwardTensors f{.inverses = rows_of<float>(inverses),
                         .U0 = rows_of<float>(U0),
                         .U = rows_of<Element>(U),
                         .W = rows_of<Element>(W),
                         .factors = rows_of<float>(factors),
                         .whole = data_of<float>(whole),
                         .starts = data_of<float>(starts),
                         .initial = aligned.initial_state ? data_of<float>(aligned.initial_state) : nullptr,
                         .final = states.final ? data_of<float>(states.final) : nullptr,
                         .o = rows_of<Element>(out.get())};
  if (rule.chunks > 0)
    launch_shared("gated_delta_rule solve", solve_kernel, head_blocks(rule), solve_threads, SolveTiles::bytes,
                  rule, f);
  constexpr int cols = 32;
  launch_shared("gated_delta_rule states", states_kernel<cols>,
                blocks_for(rule.sequences * heads * (dim / cols), 1), walk_threads, StateTiles<cols>::bytes,
                rule, f);
  if (rule.chunks > 0)
    launch_shared("gated_delta_rule outputs", outputs_kernel, head_blocks(rule), output_threads,
                  OutputTiles::bytes, rule, f);
  out.finish();
}

}  // namespace nemocube::cuda::delta_rule
