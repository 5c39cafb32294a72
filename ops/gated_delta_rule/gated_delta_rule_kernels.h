#pragma once
#include "core/kernel.h"
#include "ops/gated_delta_rule/gated_delta_rule.h"
#include "ops/sequences.h"

/// Kernels behind ops/gated_delta_rule/gated_delta_rule.h: arguments checked by the caller.
namespace nemocube {

/// No chunk is longer: kernels form the products between the tokens of a chunk as one tile.
constexpr std::int64_t delta_rule_longest_chunk = 64;
/// Of the sums of squares that rows of q and k are normalised by.
constexpr double delta_rule_eps = 1e-6;

/// How sequences are cut into chunks. Every sequence starts a new chunk; the last chunk of a sequence may be
/// short.
struct DeltaRuleChunks {
  std::int64_t length = 1;  // tokens of a whole chunk
  std::int64_t count = 0;   // of all sequences, or more: chunks beyond the last sequence have no tokens
  Tensor first;             // [sequences + 1] i64: index of each sequence's first chunk, then their number

  /// See Sequences::become().
  void refill(const DeltaRuleChunks& made) const {
    expect(made.length == length && made.count == count,
           "gated_delta_rule: other chunks cannot take the place of these");
    first.copy_from(made.first);
  }

  /// For kernels of the CPU.
  std::int64_t first_of(std::int64_t sequence) const { return first.data<std::int64_t>()[sequence]; }
  std::int64_t count_of(std::int64_t sequence) const { return first_of(sequence + 1) - first_of(sequence); }
};

struct DeltaRuleProblem {
  Tensor q, k, v, a, b;
  Tensor A_log, dt_bias;  // in the accumulation dtype
  Tensor initial_state;   // may be undefined
  DeltaRuleOptions options;
  SequenceTable sequences;
  DeltaRuleChunks chunks;
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    for (const Tensor* t : {&q, &k, &v, &a, &b, &A_log, &dt_bias, &initial_state, &chunks.first}) fn(*t);
    sequences.for_each_tensor(fn);
  }
};

/// Whether kernels form the products of forward on tensor cores.
inline bool delta_rule_on_tensor_cores(Device device, DType dtype, const DeltaRuleOptions& o) {
  return device.is_cuda() && dtype == DType::bf16 && o.key_dim == 128 && o.value_dim == 128;
}

/// The tensors that forward writes besides o, in the accumulation dtype; each may be undefined.
struct DeltaRuleStates {
  Tensor chunk_starts;  // [chunks, value_heads, key_dim, value_dim]
  Tensor final;         // [sequences, value_heads, key_dim, value_dim]
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    fn(chunk_starts);
    fn(final);
  }
};

/// The gradients of q, k, v, a and b are like these inputs. Those of the parameters are [chunks, value_heads]
/// in the accumulation dtype: one partial sum for each chunk. All are defined.
struct DeltaRuleGradients {
  Tensor q, k, v, a, b;
  Tensor A_log, dt_bias;
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    for (const Tensor* t : {&q, &k, &v, &a, &b, &A_log, &dt_bias}) fn(*t);
  }
};

namespace cpu {
void delta_rule_chunked_forward(const DeltaRuleProblem& problem, const Tensor& o,
                                const DeltaRuleStates& states);
void delta_rule_chunked_backward(const DeltaRuleProblem& problem, const DeltaRuleGradients& gradients,
                                 const Tensor& d_o, const Tensor& chunk_starts);
void delta_rule_recurrent_forward(const DeltaRuleProblem& problem, const Tensor& o,
                                  const DeltaRuleStates& states);
void delta_rule_recurrent_backward(const DeltaRuleProblem& problem, const DeltaRuleGradients& gradients,
                                   const Tensor& d_o, const Tensor& chunk_starts);
}  // namespace cpu

inline const Kernel<cpu::delta_rule_chunked_forward> delta_rule_chunked_forward(
    "gated_delta_rule/chunked/forward");
inline const Kernel<cpu::delta_rule_chunked_backward> delta_rule_chunked_backward(
    "gated_delta_rule/chunked/backward");
inline const Kernel<cpu::delta_rule_recurrent_forward> delta_rule_recurrent_forward(
    "gated_delta_rule/recurrent/forward");
inline const Kernel<cpu::delta_rule_recurrent_backward> delta_rule_recurrent_backward(
    "gated_delta_rule/recurrent/backward");

}  // namespace nemocube
