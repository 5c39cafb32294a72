#pragma once
#include "core/kernel.h"
#include "core/rng.h"

/// Kernels behind ops/embedding/embedding.h and embedding_noise.h: arguments checked by the caller. Row i of
/// weight and dweight is token begin + i.
namespace nemocube {

namespace cpu {
/// y[t, :] = scale weight[ids[t] - begin, :], 0 for ids without a row; y is contiguous.
void embedding_forward(const Tensor& y, const Tensor& ids, std::int64_t begin, const Tensor& weight,
                       double scale);

/// dweight[ids[t] - begin, :] += scale dy[t, :] in ascending t for the ids with a row, after zeroing with
/// Into::set. dweight in the accumulation dtype of dy.
void embedding_backward(const Output& dweight, const Tensor& ids, std::int64_t begin, const Tensor& dy,
                        double scale);

/// y[t, c] += magnitude * v, with v of the draw (row_numbers[t], c); see add_embedding_noise().
void embedding_noise(const Tensor& y, const RandomTable& draws, const Tensor& magnitude,
                     const Tensor& row_numbers);

}  // namespace cpu

inline const Kernel<cpu::embedding_forward> embedding_forward("embedding/forward");
inline const Kernel<cpu::embedding_backward> embedding_backward("embedding/backward");
inline const Kernel<cpu::embedding_noise> embedding_noise("embedding/noise");

}  // namespace nemocube
