#pragma once
#include "ops/mma_chunks.cuh"
#include "ops/ssd_scan/ssd_scan.cuh"

/// Parts of the kernels that form products on tensor cores, for bf16 and states of 128 or 256. A state is
/// transposed here: its rows are those of B and C, its columns the channels of the head. Operands of second
/// products (token products with their decays, states, weighted inputs) are rounded to bf16; sums, states
/// from piece to piece and decays are f32.
///
/// The rows of a state do not depend on each other: a scan is the sum of scans of parts of its states, of 128
/// rows each. The kernels that walk along a sequence take one part after the other.
namespace nemocube::cuda::ssd {

using namespace mma_chunks;

/// Tokens of a chunk, at whose start a state is kept.
constexpr int chunk_tokens = ssd_tensor_core_chunk;
static_assert(chunk_tokens == 2 * piece && piece == Decays::tokens);

/// One of the parts. Its sums with those of the parts before it are f32 until the last part rounds them.
struct StatePart {
  int first_row;
  bool first, last;

  /// Column of this part's first element in rows of B and C.
  __device__ std::int64_t column(const Scan<Element>& scan, int group) const {
    return std::int64_t{group} * scan.state + first_row;
  }
  /// Where a chunk's kept state of a head begins; its rows are `scan.head_dim` apart.
  __device__ std::int64_t kept(const Scan<Element>& scan, std::int64_t chunk, int head) const {
    return (chunk * scan.heads + head) * scan.state_elements() + std::int64_t{first_row} * scan.head_dim;
  }
};
/// Calls fn(part) for the parts of the states, in order.
template <class Fn>
void for_parts(const Scan<Element>& scan, Fn&& fn) {
  for (int row = 0; row < scan.state; row += state_rows)
    fn(StatePart{row, row == 0, row + state_rows == scan.state});
}

/// Begins to copy a kept state to a tile.
template <int threads, int cols>
__device__ void copy_state(const SharedTile<cols>& to, const Element* from, int stride,
                           int thread = static_cast<int>(threadIdx.x)) {
  copy_rows_async<state_rows, threads>(to, thread, [&](int r) { return from + r * stride; });
}
/// Adds the sum of the parts before, of two neighbouring channels of a token; the last part leaves no sum.
__device__ inline void sum_of_parts(const Rows<float>& sums, const StatePart& part, float& a, float& b,
                                    std::int64_t token, bool exists, std::int64_t col) {
  if (!exists) return;
  float2* const at = reinterpret_cast<float2*>(sums.row(token) + col);
  float2 own = make_float2(a, b);
  if (!part.first) own = make_float2(at->x + own.x, at->y + own.y);
  if (!part.last) *at = own;
  a = own.x;
  b = own.y;
}

}  // namespace nemocube::cuda::ssd
