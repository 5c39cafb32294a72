#pragma once

/// Elementary functions of ops/math.h for CUDA kernels, in f32.
namespace nemocube::cuda {

/// e^x by the approximate power of two: within 2 + |x| units in the last place; 0 instead of numbers below
/// the normal ones.
__device__ inline float quick_exp(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504F));
  return power;
}

/// 1 / (1 + e^-x). The division is approximate, within a unit in the last place.
__device__ inline float sigmoid(float x) {
  float quotient;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(quotient) : "f"(1.0F + quick_exp(-x)));
  return quotient;
}

/// s (1 + x (1 - s)), the derivative of x sigmoid(x), for s = sigmoid(x).
__device__ inline float silu_slope(float x, float s) { return s * (1 + x * (1 - s)); }

}  // namespace nemocube::cuda
