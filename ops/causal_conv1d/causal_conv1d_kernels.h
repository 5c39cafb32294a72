#pragma once
#include "core/kernel.h"
#include "ops/sequences.h"

/// Kernels behind ops/causal_conv1d/causal_conv1d.h: arguments checked by the caller.
namespace nemocube {

/// `bias` and `initial_state` may be undefined.
struct ConvInputs {
  Tensor x, weight, bias, initial_state;
  SequenceTable sequences;
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    for (const Tensor* t : {&x, &weight, &bias, &initial_state}) fn(*t);
    sequences.for_each_tensor(fn);
  }
};

namespace cpu {

void causal_conv1d_forward(const Tensor& y, const ConvInputs& in);

/// state [sequences, K - 1, C]
void causal_conv1d_final_state(const Tensor& state, const ConvInputs& in);

/// Each result may be undefined: dx like x, dweight like weight, dbias like bias; the latter of any float
/// dtype. On the CPU sums are formed in the segments of ops/reduce.h, on CUDA in segments of another fixed
/// length.
void causal_conv1d_backward(const Tensor& dx, const Output& dweight, const Output& dbias, const Tensor& dy,
                            const ConvInputs& in);

}  // namespace cpu

inline const Kernel<cpu::causal_conv1d_forward> causal_conv1d_forward("causal_conv1d/forward");
inline const Kernel<cpu::causal_conv1d_final_state> causal_conv1d_final_state("causal_conv1d/final_state");
inline const Kernel<cpu::causal_conv1d_backward> causal_conv1d_backward("causal_conv1d/backward");

}  // namespace nemocube
