#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

/// Elementary functions. The f32 versions are plain arithmetic without branches, which the compiler can
/// vectorise. Their relative error is below 3e-7 unless the result is denormal; silu_grad has an absolute
/// error below 2e-6 instead. The f64 versions call the standard library.
namespace nemocube {

/// e^x. f32: |relative error| < 1e-7 from -87.33 to 88.37; 0 below -87.69, +inf above 88.38; NaN stays NaN.
inline float vec_exp(float x) {
  constexpr float log2e = 1.44269504088896341f;
  constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  const float at_least = x < -88.0f ? -88.0f : x;
  const float clamped = at_least > 89.0f ? 89.0f : at_least;
  // Adding 1.5 * 2^23 + 127 rounds to the nearest integer n and leaves the exponent field of 2^n in the low
  // mantissa bits: the field of the number 0 for n = -127, the field of infinity for n = 128.
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

/// tanh x, for e = e^(-2 |x|). Where 1 - e would cancel: the first terms of the series.
inline float tanh_by(float x, float e) {
  const float square = x * x;
  float series = 2.1869488536e-2f;
  series = series * square - 5.3968253968e-2f;
  series = series * square + 1.3333333333e-1f;
  series = series * square - 3.3333333333e-1f;
  series = series * square * x + x;
  return std::abs(x) < 0.25f ? series : std::copysign((1.0f - e) / (1.0f + e), x);
}

/// tanh x. f32: |relative error| < 5e-7.
inline float vec_tanh(float x) { return tanh_by(x, vec_exp(-2.0f * std::abs(x))); }
inline double vec_tanh(double x) { return std::tanh(x); }

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

/// log1p(e^x) = max(x, 0) + log1p(e^-|x|); x itself above 20, as in the torch and Triton paths.
inline float softplus(float x) {
  const float u = vec_exp(x < 0 ? x : -x);
  // log1p(u) = shift + log1p(f) with f in [-0.293, 0.415], where u - 1 is exact; the polynomial is a minimax
  // fit of (log1p(f) - f + f^2 / 2) / f^3, relative error 6e-9 of log1p.
  const bool upper = u > 0.41421356f;
  const float f = upper ? 0.5f * (u - 1.0f) : u;
  const float shift = upper ? 0.69314718f : 0.0f;
  float p = -0.07871133436f;
  p = p * f + 0.1287684558f;
  p = p * f - 0.1312196072f;
  p = p * f + 0.1418164849f;
  p = p * f - 0.1662537038f;
  p = p * f + 0.2000227776f;
  p = p * f - 0.2500078324f;
  p = p * f + 0.3333331688f;
  const float log1p = shift + (f + f * f * (f * p - 0.5f));
  const float sum = (x > 0 ? x : 0.0f) + log1p;
  return x > 20.0f ? x : sum;
}
inline double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

template <class T>
inline T softplus_grad(T x) {
  return x > T(20) ? T(1) : sigmoid(x);
}

}  // namespace nemocube
