#pragma once

/// Elementary functions of ops/math.h for CUDA kernels, in f32.
namespace nemocube::cuda {

/// 1 / (1 + e^-x). The division is approximate, within 2 units in the last place.
__device__ inline float sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }

/// s (1 + x (1 - s)), the derivative of x sigmoid(x), for s = sigmoid(x).
__device__ inline float silu_slope(float x, float s) { return s * (1 + x * (1 - s)); }

}  // namespace nemocube::cuda
