#pragma once
#include "core/kernel.h"
#include "ops/sample_tokens/sample_tokens.h"

/// The kernel behind ops/sample_tokens/sample_tokens.h: arguments checked by the caller, no size is 0.
namespace nemocube {

namespace cpu {
void sample_tokens(const Tensor& ids, const Tensor& logits, const SamplingOptions& options,
                   const Tensor& uniform);
}
inline const Kernel<cpu::sample_tokens> sample_tokens_kernel("sample_tokens/draw");

}  // namespace nemocube
