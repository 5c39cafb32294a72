#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

/// Elementary functions. For f32 all but softplus are plain arithmetic without branches, which the compiler
/// can vectorise; relative errors are below 3e-7 where the result is no denormal number, but for silu_grad,
/// whose absolute error is below 2e-6. Everything else calls the standard library.
namespace nemocube {

/// e^x. f32: |relative error| < 1e-7 from -87.33 to 88.37; 0 below -87.69, +inf above 88.38; NaN stays NaN.
inline float vec_exp(float x) {
  constexpr float log2e = 1.44269504088896341f;
  constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  const float at_least = x < -88.0f ? -88.0f : x;
  const float clamped = at_least > 89.0f ? 89.0f : at_least;
  // Adding 1.5 * 2^23 + 127 rounds to the nearest integer n and leaves the exponent field of 2^n in the low
  // mantissa bits: that of 0 for n = -127, of infinity for 128.
  constexpr float round = 12582912.0f + 127.0f;
  const float shifted = clamped * log2e + round;
  const float n = shifted - round;
  const float r = (clamped - n * ln2_high) - n * ln2_low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * std::bit_cast<float>(std::bit_cast<std::uint32_t>(shifted) << 23);
}
inline double vec_exp(double x) { return std::exp(x); }

/// Logistic function 1 / (1 + e^-x).
template <class T>
inline T sigmoid(T x) {
  return T(1) / (T(1) + vec_exp(-x));
}

/// x sigmoid(x), and its derivative s (1 + x (1 - s)).
template <class T>
inline T silu(T x) {
  return x * sigmoid(x);
}
template <class T>
inline T silu_grad(T x) {
  const T s = sigmoid(x);
  return s * (T(1) + x * (T(1) - s));
}

/// log1p(e^x), x itself above 20 (the threshold rule of the torch and Triton paths).
template <class T>
inline T softplus(T x) {
  return x > T(20) ? x : std::log1p(std::exp(x));
}
template <class T>
inline T softplus_grad(T x) {
  return x > T(20) ? T(1) : sigmoid(x);
}

}  // namespace nemocube
