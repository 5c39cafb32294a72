#pragma once
#include "core/kernel.h"
#include "ops/sequences.h"
#include "ops/ssd_scan/ssd_scan.h"

/// Kernels behind ops/ssd_scan/ssd_scan.h: arguments checked by the caller.
namespace nemocube {

/// How sequences are cut into chunks. Every sequence starts a new chunk; the last chunk of a sequence may be
/// short.
struct SsdChunks {
  std::int64_t length = 1;  // tokens of a whole chunk
  std::int64_t count = 0;   // of all sequences, or more: chunks beyond the last sequence have no tokens
  Tensor first;             // [sequences + 1] i64: index of each sequence's first chunk, then their number

  /// Kernels on tensor cores cut long sequences into segments of ssd_segment_tokens, which they walk along at
  /// the same time. Every sequence has one or more.
  std::int64_t segments = 0;  // of all sequences, or more, as `count`
  Tensor first_segment;       // like `first`; undefined where no sequence can have more than one

  /// See Sequences::become().
  void refill(const SsdChunks& made) const {
    expect(made.length == length && made.count == count && made.segments == segments,
           "ssd_scan: other chunks cannot take the place of these");
    first.copy_from(made.first);
    if (first_segment) first_segment.copy_from(made.first_segment);
  }

  /// For kernels of the CPU.
  std::int64_t first_of(std::int64_t sequence) const { return first.data<std::int64_t>()[sequence]; }
  std::int64_t count_of(std::int64_t sequence) const { return first_of(sequence + 1) - first_of(sequence); }
};

struct SsdProblem {
  Tensor x, dt_raw, B, C;
  Tensor A_log, D, dt_bias;  // in the accumulation dtype
  Tensor initial_state;      // may be undefined
  SsdOptions options;
  SequenceTable sequences;
  SsdChunks chunks;
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    for (const Tensor* t :
         {&x, &dt_raw, &B, &C, &A_log, &D, &dt_bias, &initial_state, &chunks.first, &chunks.first_segment})
      fn(*t);
    sequences.for_each_tensor(fn);
  }
};

/// Whether kernels form the products of a scan on tensor cores. Their chunks have ssd_tensor_core_chunk
/// tokens, and their states at the starts of chunks are bf16, each transposed: [chunks, heads, state_size,
/// head_dim].
inline bool ssd_on_tensor_cores(Device device, DType dtype, const SsdOptions& o) {
  return device.is_cuda() && dtype == DType::bf16 && (o.state_size == 128 || o.state_size == 256) &&
         (o.head_dim == 64 || o.head_dim == 80);
}
constexpr std::int64_t ssd_tensor_core_chunk = 128;
/// Tokens of a segment. Where a sequence is cut depends on its own length alone: packed and separate ones are
/// cut alike.
constexpr std::int64_t ssd_segment_tokens = 1024;
static_assert(ssd_segment_tokens % ssd_tensor_core_chunk == 0);

/// The tensors that forward writes besides y; each may be undefined.
struct SsdStates {
  Tensor
      chunk_starts;  // [chunks, heads, head_dim, state_size] in the accumulation dtype (see ssd_on_tensor_cores)
  Tensor final;      // [sequences, heads, head_dim, state_size]
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    fn(chunk_starts);
    fn(final);
  }
};

/// The gradients of x, dt_raw, B and C are like these inputs. Those of the parameters are [chunks, heads] in
/// the accumulation dtype: one partial sum for each chunk. All are defined.
struct SsdGradients {
  Tensor x, dt_raw, B, C;
  Tensor A_log, D, dt_bias;
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    for (const Tensor* t : {&x, &dt_raw, &B, &C, &A_log, &D, &dt_bias}) fn(*t);
  }
};

namespace cpu {
void ssd_chunked_forward(const SsdProblem& problem, const Tensor& y, const SsdStates& states);
void ssd_chunked_backward(const SsdProblem& problem, const SsdGradients& gradients, const Tensor& dy,
                          const Tensor& chunk_starts);
void ssd_recurrent_forward(const SsdProblem& problem, const Tensor& y, const SsdStates& states);
void ssd_recurrent_backward(const SsdProblem& problem, const SsdGradients& gradients, const Tensor& dy,
                            const Tensor& chunk_starts);
}  // namespace cpu

inline const Kernel<cpu::ssd_chunked_forward> ssd_chunked_forward("ssd_scan/chunked/forward");
inline const Kernel<cpu::ssd_chunked_backward> ssd_chunked_backward("ssd_scan/chunked/backward");
inline const Kernel<cpu::ssd_recurrent_forward> ssd_recurrent_forward("ssd_scan/recurrent/forward");
inline const Kernel<cpu::ssd_recurrent_backward> ssd_recurrent_backward("ssd_scan/recurrent/backward");

}  // namespace nemocube
