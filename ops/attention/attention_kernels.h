#pragma once
#include "core/kernel.h"
#include "ops/attention/partial_attention.h"

/// Kernels behind ops/attention/partial_attention.h: arguments checked by the caller.
namespace nemocube {

namespace cpu {
void attention_forward(const AttentionResult& out, const AttentionInputs& in, Into how);
void attention_backward(const AttentionGrads& out, const Tensor& d_o, const AttentionResult& result,
                        const AttentionInputs& in, Into how);
void attention_plain_forward(const AttentionResult& out, const AttentionInputs& in, Into how);
void attention_plain_backward(const AttentionGrads& out, const Tensor& d_o, const AttentionResult& result,
                              const AttentionInputs& in, Into how);
}  // namespace cpu

inline const Kernel<cpu::attention_forward> attention_tiled_forward("attention/tiled/forward");
inline const Kernel<cpu::attention_backward> attention_tiled_backward("attention/tiled/backward");
inline const Kernel<cpu::attention_plain_forward> attention_plain_forward("attention/plain/forward");
inline const Kernel<cpu::attention_plain_backward> attention_plain_backward("attention/plain/backward");

}  // namespace nemocube
