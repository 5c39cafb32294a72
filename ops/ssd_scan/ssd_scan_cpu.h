#pragma once
#include "core/tensor.h"
#include "ops/sequences.h"
#include "ops/ssd_scan/ssd_scan.h"

/// Kernels behind ops/ssd_scan/ssd_scan.h: arguments checked by the caller.
namespace nemocube::cpu {

struct SsdProblem {
  Tensor x, dt_raw, B, C;
  Tensor A_log, D, dt_bias;  // in the accumulation dtype
  Tensor initial_state;      // may be undefined
  SsdOptions options;
  Sequences sequences;

  /// Chunks start afresh at every sequence; the last one of a sequence may be short.
  std::int64_t chunk_length() const;
  std::int64_t chunks() const;
  std::int64_t first_chunk(std::int64_t sequence) const;
};

/// What forward writes besides y; each may be undefined.
struct SsdStates {
  Tensor chunk_starts;  // [chunks, heads, head_dim, state_size], read by backward
  Tensor final;         // [sequences, heads, head_dim, state_size]
};

/// Like the inputs, and for the parameters [chunks, heads] in the accumulation dtype: one partial sum for
/// each chunk. All defined.
struct SsdGradients {
  Tensor x, dt_raw, B, C;
  Tensor A_log, D, dt_bias;
};

void ssd_chunked_forward(const SsdProblem& problem, const Tensor& y, const SsdStates& states);
void ssd_chunked_backward(const SsdProblem& problem, const SsdGradients& gradients, const Tensor& dy,
                          const Tensor& chunk_starts);
void ssd_recurrent_forward(const SsdProblem& problem, const Tensor& y, const SsdStates& states);
void ssd_recurrent_backward(const SsdProblem& problem, const SsdGradients& gradients, const Tensor& dy,
                            const Tensor& chunk_starts);

}  // namespace nemocube::cpu
