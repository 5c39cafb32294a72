#include "ops/ssd_scan/ssd_scan_segments.cuh"

// Forward on tensor cores: one kernel for each part of the states. A block has one segment and head, or a
// slice of the head's channels, and walks along the segment with the state in registers. Where sequences have
// several segments, two kernels before it form the states between segments (ssd_scan_segments.cuh). B and C
// of a group come from DRAM once: the blocks of its other heads find them in the L2 cache. The tokens of a
// piece are the rows of the warps; for the state, warps have rows of B.
//
// Slices change no bit, because channels do not depend on each other. More slices occupy a larger device
// where there are few segments and heads, and form the products between tokens again for each slice.
namespace nemocube::cuda::ssd {
namespace {

/// B and X have two stages: while a piece is worked on, those of the next one are copied to the other stage.
/// Rows of C are read by one warp only, which copies those of the next piece when it has written its outputs.
template <int cols>
struct ForwardTiles {
  static constexpr int shared_rows = SharedTile<state_rows>::bytes(piece),
                       stage = shared_rows + SharedTile<cols>::bytes(piece),
                       state = SharedTile<cols>::bytes(state_rows);
  static constexpr std::size_t bytes = 2 * stage + shared_rows + state;
  SharedTile<state_rows> B, C;
  SharedTile<cols> X, H;
  __device__ ForwardTiles(char* at, int stage_number)
      : B(at + stage_number * stage), C(at + 2 * stage), X(B.start + shared_rows), H(C.start + shared_rows) {}
};

struct ForwardTensors {
  Rows<Element> y;
  Element* starts;       // [chunks, heads, state, head_dim]; may be null, as the next two
  const float* initial;  // [sequences, heads, head_dim, state]
  float* final;
  Rows<float> sums;  // y of the parts so far
  Segments segments;
  StatePart part;
  int slices;
};

/// A warp's 16 rows of Y: from_start (C H) + (L * C B^T) dt X, without D X.
template <int cols>
__device__ void outputs(FragmentC (&out)[1][cols / 8], const ForwardTiles<cols>& tiles, const Decays& d,
                        bool has_state, int warp, int lane) {
  lane = opaque(lane);
  // C B^T. The blocks above the diagonal are not used; branches around them would cost more.
  FragmentC products[walk_warps][2];
#pragma unroll 2
  for (int n = 0; n < state_rows; n += 16) {
    const FragmentA c[1] = {load_a(tiles.C, 16 * warp, n, lane)};
    if (has_state) add_product(out, c, tiles.H, n, lane);
#pragma unroll
    for (int block = 0; block < walk_warps; ++block)
      add_transposed_product(products[block], c[0], tiles.B, 16 * block, n, lane);
  }
  lane = opaque(lane);
  const float upper = d.from_start[16 * warp + lane / 4], lower = d.from_start[16 * warp + lane / 4 + 8];
#pragma unroll
  for (FragmentC& c : out[0]) {
    c.v[0] *= upper;
    c.v[1] *= upper;
    c.v[2] *= lower;
    c.v[3] *= lower;
  }
#pragma unroll
  for (int block = 0; block < walk_warps; ++block)
    if (block <= warp) {
      // Formed for all elements and then masked, so that nothing branches.
      for_each(products[block], 16 * warp, 16 * block, lane, [&](float& v, int l, int s) {
        const float decayed = v * d.between(s, l) * d.dt[s];
        v = s <= l ? decayed : 0;
      });
      const FragmentA masked[1] = {fragment_a(products[block][0], products[block][1])};
      add_product(out, masked, tiles.X, 16 * block, lane);
    }
}

template <int cols>
__global__ void __launch_bounds__(walk_threads, cols == 32 ? 3 : 2)
    walk_forward_kernel(const Scan<Element> scan, const ForwardTensors t) {
  extern __shared__ __align__(128) char shared[];
  __shared__ Decays decays[2];  // of the two stages
  const int warp = static_cast<int>(threadIdx.x) / warp_threads;
  int lane = static_cast<int>(threadIdx.x) % warp_threads;
  const int slice = static_cast<int>(blockIdx.x % t.slices);
  const int head = static_cast<int>(blockIdx.x / t.slices % scan.heads), group = head / scan.group_heads();
  const std::int64_t segment = blockIdx.x / t.slices / scan.heads;
  const SegmentPlace at = place_of_segment(scan, segment);
  if (!at.exists) return;
  const std::int64_t begin = at.begin, end = at.end;
  const std::int64_t shared_col = t.part.column(scan, group);
  const std::int64_t col = std::int64_t{head} * scan.head_dim + slice * cols;
  // Of the slice's first channel.
  const std::int64_t state_at =
      ((at.sequence * scan.heads + head) * scan.head_dim + slice * cols) * scan.state + t.part.first_row;
  const float skip = t.part.first ? scan.D[head] : 0;

  State<cols> h;
  if (!at.first)
    h.read(t.segments.state(scan, segment - 1, head, slice * cols), warp, lane);
  else if (t.initial)
    h.load(t.initial + state_at, scan.state, warp, lane);
  const bool with_start = !at.first || t.initial, wants_final = at.last && t.final;

  const auto tokens_from = [&](std::int64_t t0) {
    return static_cast<int>(end - t0 < piece ? end - t0 : piece);
  };
  RawSteps<piece> steps;  // of the next piece, in the first warp
  const auto begin_copies = [&](std::int64_t t0, int stage) {
    if (t0 >= end) return;
    const ForwardTiles<cols> tiles(shared, stage);
    const int n = tokens_from(t0);
    copy_tokens<piece, walk_threads>(tiles.B, scan.B, t0, n, shared_col);
    copy_tokens<piece, walk_threads>(tiles.X, scan.x, t0, n, col);
    copy_async_commit();
    if (warp == 0) steps = load_steps<piece>(scan, t0, n, head);
  };
  // What each warp prepares for itself, and the first one for all.
  const auto prepare = [&](std::int64_t t0, int stage) {
    if (t0 >= end) return;
    const int n = tokens_from(t0);
    copy_own_tokens(ForwardTiles<cols>(shared, stage).C, 16 * warp, scan.C, t0, n, shared_col, lane);
    copy_async_commit();
    if (warp == 0) warp_set_decays(decays[stage], steps, scan, n, head);
  };
  begin_copies(begin, 0);
  prepare(begin, 0);

  int stage = 0;
  for (std::int64_t t0 = begin; t0 < end; t0 += piece, stage ^= 1) {
    const ForwardTiles<cols> tiles(shared, stage);
    const Decays& d = decays[stage];
    const int n = tokens_from(t0);
    lane = opaque(lane);
    __syncthreads();  // all warps are done with the piece before
    h.store(tiles.H, warp, lane);
    copy_async_wait<0>();
    __syncthreads();
    begin_copies(t0 + piece, stage ^ 1);
    if (t.starts && (t0 - begin) % chunk_tokens == 0) {
      const std::int64_t chunk = at.first_chunk + (t0 - begin) / chunk_tokens;
      keep_state<walk_threads>(t.starts + t.part.kept(scan, chunk, head) + slice * cols, scan.head_dim,
                               tiles.H);
    }

    FragmentC out[1][cols / 8];
    outputs<cols>(out, tiles, d, t0 > begin || with_start, warp, lane);
    // The rows of C that the warp has are its own, and all its threads have read them.
    __syncwarp();
    lane = opaque(lane);
    for_each_pair(out[0], 16 * warp, lane, [&](float& a, float& b, int l, int p, int) {
      const float2 x = pair_at(tiles.X, l, p);
      a += skip * x.x;
      b += skip * x.y;
    });
    if (!t.part.first || !t.part.last)
      for_each_pair(out[0], 16 * warp, lane, [&](float& a, float& b, int l, int p, int) {
        sum_of_parts(t.sums, t.part, a, b, t0 + l, l < n, col + p);
      });
    for_each_pair(out[0], 16 * warp, lane,
                  [&](float a, float b, int l, int p, int) { set_pair(tiles.C, l, p, a, b); });
    if (t.part.last) store_tokens<cols>(tiles.C, 16 * warp, t.y, t0, n, col, lane);
    __syncwarp();
    prepare(t0 + piece, stage ^ 1);

    if (t0 + piece >= end && !wants_final) break;
    h.scale(d.whole);
    h.template add<2>(tiles.B, tiles.X, warp, lane, [&](int s) { return d.to_end[s] * d.dt[s]; });
  }
  if (wants_final)
    h.for_each_pair(warp, lane, [&](float a, float b, int n, int p) {
      t.final[state_at + p * scan.state + n] = a;
      t.final[state_at + (p + 1) * scan.state + n] = b;
    });
}

template <int cols>
void launch_forward(const Scan<Element>& scan, ForwardTensors t) {
  t.slices = scan.head_dim / cols;
  form_segment_states<cols, false>(scan, scan.x, t.part, t.initial, t.segments);
  launch_shared("ssd_scan forward", walk_forward_kernel<cols>,
                blocks_for(scan.segments * scan.heads * t.slices, 1), walk_threads, ForwardTiles<cols>::bytes,
                scan, t);
}

}  // namespace

void tensor_core_forward(const SsdProblem& problem, const Tensor& y, const SsdStates& states) {
  SsdProblem aligned = problem;
  for (Tensor* t : {&aligned.x, &aligned.B, &aligned.C}) *t = aligned_operand(*t);
  const AlignedOutput out(y);
  const Scan<Element> scan(aligned);
  if (scan.sequences == 0) return;
  const Tensor sums = scan.state > state_rows ? Tensor::empty(y.shape(), DType::f32, y.device()) : Tensor();
  const SegmentMemory segments(scan, y.device());
  ForwardTensors t{.y = rows_of<Element>(out.get()),
                   .starts = states.chunk_starts ? data_of<Element>(states.chunk_starts) : nullptr,
                   .initial = problem.initial_state ? data_of<float>(problem.initial_state) : nullptr,
                   .final = states.final ? data_of<float>(states.final) : nullptr,
                   .sums = rows_of<float>(sums),
                   .segments = segments.get(),
                   .part = {},
                   .slices = 1};
  // Slices where whole heads would be fewer than two blocks for each multiprocessor. Heads of 80
  // always have two.
  const bool few = scan.segments * scan.heads < 2 * device_limits().multiprocessors;
  for_parts(scan, [&](const StatePart& part) {
    t.part = part;
    if (scan.head_dim == 80)
      launch_forward<40>(scan, t);
    else
      few ? launch_forward<32>(scan, t) : launch_forward<64>(scan, t);
  });
  out.finish();
}

}  // namespace nemocube::cuda::ssd
