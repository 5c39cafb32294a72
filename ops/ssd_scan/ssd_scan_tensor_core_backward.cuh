#pragma once
#include "ops/ssd_scan/ssd_scan_segments.cuh"

/// Operands and results of the two backward kernels on tensor cores (ssd_scan_tensor_core_backward.cu).
namespace nemocube::cuda::ssd {

enum ScanParameter { A_log, D, dt_bias };

struct BackwardTensors {
  Rows<Element> dy;
  const Element* starts;  // H, [chunks, heads, state, head_dim]
  Element* ends;          // R at the end of each chunk but the last of a sequence, like `starts`
  bool with_initial;
  Rows<Element> dx, ddt_raw, dB, dC;
  float* parameters[3];  // by ScanParameter: the gradients, [chunks, heads]
  int slices;            // of a head's channels: whole heads or halves
  // What the slices have of these gradients, [3, slices, chunks, heads]. Null for one slice.
  float* of_slices;
  // What slices, in all parts so far, have of ddt_raw, [slices * tokens, heads]. Null for one slice and one
  // part.
  Rows<float> ddt_sums;
  Rows<float> dx_sums;  // dx of the parts so far; null for one part
  Segments segments;    // R between segments
  StatePart part;       // of the walk
  std::int64_t tokens;

  __device__ float& parameter(int which, int slice, std::int64_t chunk, int head,
                              const Scan<Element>& scan) const {
    float* const to =
        of_slices ? of_slices + (which * slices + slice) * scan.chunks * scan.heads : parameters[which];
    return to[chunk * scan.heads + head];
  }
  __device__ float& ddt_sum(int slice, std::int64_t token, int head) const {
    return ddt_sums.row(slice * tokens + token)[head];
  }
};

}  // namespace nemocube::cuda::ssd
