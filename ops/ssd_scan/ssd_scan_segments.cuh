#pragma once
#include "ops/ssd_scan/ssd_scan_tensor_core.cuh"

/// Kernels on tensor cores walk along the segments of a sequence at the same time. The first kernel here
/// forms what each segment adds to the state, from a state of zeros at its start; the second one hands states
/// on from segment to segment, in f32. Backward: the gradient R of the state, from the end of a sequence to
/// its start.
namespace nemocube::cuda::ssd {

/// The tokens [begin, end) of a segment.
struct SegmentPlace {
  std::int64_t sequence, begin, end, first_chunk;
  bool first, last;  // of its sequence
  bool exists;       // otherwise there are fewer segments
};
__device__ inline SegmentPlace place_of_segment(const Scan<Element>& scan, std::int64_t segment) {
  std::int64_t sequence = segment, number = 0;
  if (scan.first_segment) {
    if (segment >= scan.first_segment[scan.sequences]) return {};
    sequence = sequence_of(scan.first_segment, scan.sequences, segment);
    number = segment - scan.first_segment[sequence];
  }
  const std::int64_t begin = scan.offsets[sequence] + number * ssd_segment_tokens,
                     end = scan.offsets[sequence + 1];
  const bool last = !scan.first_segment || segment + 1 == scan.first_segment[sequence + 1];
  return {sequence,
          begin,
          last ? end : begin + ssd_segment_tokens,
          scan.first_chunk[sequence] + number * (ssd_segment_tokens / chunk_tokens),
          number == 0,
          last,
          true};
}

/// For one part of the states. Null where every sequence is one segment.
struct Segments {
  // [segments, heads, head_dim, state_rows]; threads write the elements in an order of their own
  // (State::write). Forward: the states at the ends of segments; backward: R at their starts.
  float* states;
  float* decays;  // [segments, heads], over the whole segment

  /// Of the channels from `channel` on.
  __device__ float* state(const Scan<Element>& scan, std::int64_t segment, int head, int channel) const {
    return states + ((segment * scan.heads + head) * scan.head_dim + channel) * state_rows;
  }
};
class SegmentMemory {
 public:
  SegmentMemory(const Scan<Element>& scan, Device device) {
    if (!scan.first_segment) return;
    states_ = Tensor::empty({scan.segments, scan.heads, scan.head_dim, state_rows}, DType::f32, device);
    decays_ = Tensor::empty({scan.segments, scan.heads}, DType::f32, device);
  }
  Segments get() const {
    if (!states_) return {};
    return {data_of<float>(states_), data_of<float>(decays_)};
  }

 private:
  Tensor states_, decays_;
};

/// The tiles of one of two stages: while a piece is worked on, the next one is copied to the other stage.
template <int cols>
struct SegmentTiles {
  static constexpr int shared_rows = SharedTile<state_rows>::bytes(piece),
                       stage = shared_rows + SharedTile<cols>::bytes(piece);
  static constexpr std::size_t bytes = 2 * (stage + sizeof(Decays));
  SharedTile<state_rows> rows;
  SharedTile<cols> channels;
  Decays& decays;
  __device__ SegmentTiles(char* at, int stage_number)
      : rows(at + stage_number * stage),
        channels(rows.start + shared_rows),
        decays(reinterpret_cast<Decays*>(at + 2 * stage)[stage_number]) {}
};

/// A block has one segment and head, or a slice of the head's channels. Segments whose state no other one
/// needs have none: forward the last ones, backward the first ones. `channels`: x or dy.
template <int cols, bool backward>
__global__ void __launch_bounds__(walk_threads, cols <= 64 ? 4 : 3)
    segment_states_kernel(const Scan<Element> scan, const Rows<Element> channels, const StatePart part,
                          const float* initial, const Segments segments) {
  extern __shared__ __align__(128) char shared[];
  const int warp = static_cast<int>(threadIdx.x) / warp_threads,
            lane = static_cast<int>(threadIdx.x) % warp_threads;
  const int slices = scan.head_dim / cols, slice = static_cast<int>(blockIdx.x % slices);
  const int head = static_cast<int>(blockIdx.x / slices % scan.heads), group = head / scan.group_heads();
  const std::int64_t segment = blockIdx.x / slices / scan.heads;
  const SegmentPlace at = place_of_segment(scan, segment);
  if (!at.exists || (backward ? at.first : at.last)) return;
  const std::int64_t shared_col = part.column(scan, group);
  const std::int64_t col = std::int64_t{head} * scan.head_dim + slice * cols;

  State<cols> h;
  if (at.first && initial)
    h.load(initial + (at.sequence * scan.heads * scan.head_dim + col) * scan.state + part.first_row,
           scan.state, warp, lane);

  const int pieces = static_cast<int>((at.end - at.begin + piece - 1) / piece);
  const auto start_of = [&](int i) { return at.begin + (backward ? pieces - 1 - i : i) * piece; };
  const auto tokens_of = [&](int i) {
    const std::int64_t rest = at.end - start_of(i);
    return static_cast<int>(rest < piece ? rest : piece);
  };
  RawSteps<piece> steps;  // of the next piece, in the first warp
  const auto begin_copies = [&](int i) {
    if (i == pieces) return;
    const SegmentTiles<cols> tiles(shared, i % 2);
    const int thread = opaque(static_cast<int>(threadIdx.x));
    copy_tokens<piece, walk_threads>(tiles.rows, backward ? scan.C : scan.B, start_of(i), tokens_of(i),
                                     shared_col, thread);
    copy_tokens<piece, walk_threads>(tiles.channels, channels, start_of(i), tokens_of(i), col, thread);
    copy_async_commit();
    if (warp == 0) steps = load_steps<piece>(scan, start_of(i), tokens_of(i), head);
  };
  const auto set_decays = [&](int i) {
    if (warp == 0 && i < pieces)
      warp_set_decays(SegmentTiles<cols>(shared, i % 2).decays, steps, scan, tokens_of(i), head);
  };
  begin_copies(0);
  set_decays(0);

  float whole = 1;
  for (int i = 0; i < pieces; ++i) {
    const SegmentTiles<cols> tiles(shared, i % 2);
    const Decays& d = tiles.decays;
    copy_async_wait<0>();
    __syncthreads();  // the piece is complete, and all warps are done with the one before
    begin_copies(i + 1);
    h.scale(d.whole);
    h.add(tiles.rows, tiles.channels, warp, lane,
          [&](int l) { return backward ? d.from_start[l] : d.to_end[l] * d.dt[l]; });
    whole *= d.whole;
    set_decays(i + 1);
  }
  h.write(segments.state(scan, segment, head, slice * cols), warp, lane);
  if (slice == 0 && threadIdx.x == 0) segments.decays[segment * scan.heads + head] = whole;
}

/// In: what segments add. Out: the states behind them.
constexpr int hand_on_threads = 256;
template <bool backward>
__global__ void __launch_bounds__(hand_on_threads)
    hand_on_kernel(const Scan<Element> scan, const Segments segments) {
  const std::int64_t sequence = blockIdx.x / scan.heads;
  const int head = static_cast<int>(blockIdx.x % scan.heads);
  const int element = (static_cast<int>(blockIdx.y) * hand_on_threads + static_cast<int>(threadIdx.x)) * 4;
  if (element >= scan.head_dim * state_rows) return;
  // The first segment and the last one that others need, in the order of the walk.
  const std::int64_t begin = scan.first_segment[sequence], end = scan.first_segment[sequence + 1];
  const int count = static_cast<int>(end - begin) - 1;
  const auto number = [&](int i) { return backward ? end - 1 - i : begin + i; };
  const auto place = [&](int i) {
    return reinterpret_cast<float4*>(segments.state(scan, number(i), head, 0) + element);
  };
  if (count < 2) return;
  float4 now = *place(0), added = *place(1);
  for (int i = 1; i < count; ++i) {
    const float4 next = i + 1 < count ? *place(i + 1) : float4{};
    const float decay = segments.decays[number(i) * scan.heads + head];
    now = make_float4(decay * now.x + added.x, decay * now.y + added.y, decay * now.z + added.z,
                      decay * now.w + added.w);
    *place(i) = now;
    added = next;
  }
}

/// Queues both kernels where there are sequences of several segments. `initial`: states of sequences, or
/// null.
template <int cols, bool backward>
void form_segment_states(const Scan<Element>& scan, const Rows<Element>& channels, const StatePart& part,
                         const float* initial, const Segments& segments) {
  if (!segments.states) return;
  launch_shared("ssd_scan states of segments", segment_states_kernel<cols, backward>,
                blocks_for(scan.segments * scan.heads * (scan.head_dim / cols), 1), walk_threads,
                SegmentTiles<cols>::bytes, scan, channels, part, initial, segments);
  const dim3 blocks(blocks_for(scan.sequences * scan.heads, 1),
                    blocks_for(scan.head_dim * state_rows, hand_on_threads * 4));
  launch("ssd_scan states between segments", hand_on_kernel<backward>, blocks, hand_on_threads, scan,
         segments);
}

}  // namespace nemocube::cuda::ssd
