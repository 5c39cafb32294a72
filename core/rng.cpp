#include "core/rng.h"

#include <algorithm>
#include <cmath>

#include "core/parallel_for.h"

namespace nemocube {
namespace {

// ln(x) from correctly rounded operations only: x = m 2^e with m in [sqrt(1/2), sqrt(2)), ln m = 2
// atanh((m-1)/(m+1)).
double portable_log(double x) {
  int e = 0;
  double m = std::frexp(x, &e);
  if (m < 0.70710678118654752440) {
    m *= 2;
    e -= 1;
  }
  const double s = (m - 1) / (m + 1), s2 = s * s;
  double series = 0;
  for (int k = 27; k >= 1; k -= 2) series = std::fma(series, s2, 1.0 / k);
  return std::fma(static_cast<double>(e), 0.69314718055994530942, 2 * s * series);
}

template <std::size_t n>
double horner(const std::array<double, n>& c, double x) {
  double value = c[0];
  for (std::size_t i = 1; i < n; ++i) value = std::fma(value, x, c[i]);
  return value;
}

// t[j] = law(uniform draw first + j). A Philox block holds two draws and is computed once for both.
template <class Law>
void fill_with(const Tensor& t, const RandomStream& stream, std::uint64_t first, const Law& law) {
  if (t.numel() == 0) return;
  visit_float("random fill", t.dtype(), [&]<class T>(TypeTag<T>) {
    const std::int64_t cols = t.cols();
    parallel_for(t.numel(), 4096, [&](std::int64_t begin, std::int64_t end) {
      std::uint64_t i = first + static_cast<std::uint64_t>(begin);
      auto block = stream.block(i / 2);
      for (std::int64_t j = begin; j < end;) {
        T* const row = t.row<T>(j / cols);
        const std::int64_t to = std::min(cols, j % cols + end - j);
        for (std::int64_t c = j % cols; c < to; ++c, ++i, ++j) {
          if (i % 2 == 0) block = stream.block(i / 2);
          row[c] = static_cast<T>(static_cast<acc_t<T>>(law(RandomStream::to_uniform(block[i % 2]))));
        }
      }
    });
  });
}

}  // namespace

std::uint64_t hash_name(std::string_view text) {
  std::uint64_t h = 14695981039346656037ull;
  for (const char ch : text) h = (h ^ static_cast<unsigned char>(ch)) * 1099511628211ull;
  return h;
}

RandomStream::RandomStream(std::uint64_t seed, std::string_view name)
    : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)} {
  const std::uint64_t h = hash_name(name);
  stream_ = {static_cast<std::uint32_t>(h), static_cast<std::uint32_t>(h >> 32)};
}

std::array<std::uint64_t, 2> RandomStream::block(std::uint64_t b) const {
  const auto r = philox(
      {static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(b >> 32), stream_[0], stream_[1]}, key_);
  return {std::uint64_t{r[1]} << 32 | r[0], std::uint64_t{r[3]} << 32 | r[2]};
}

std::uint64_t RandomStream::bits(std::uint64_t i) const { return block(i / 2)[i % 2]; }

double RandomStream::to_uniform(std::uint64_t bits) {
  return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
}

double RandomStream::uniform(std::uint64_t i) const { return to_uniform(bits(i)); }

double RandomStream::normal(std::uint64_t i) const { return inverse_normal(uniform(i)); }

std::uint64_t RandomStream::below(std::uint64_t i, std::uint64_t n) const {
  __extension__ using u128 = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<u128>(bits(i)) * n) >> 64);
}

// The last draw of the stream, which no slice of a parameter reaches, is the key.
RandomTable::RandomTable(const RandomStream& stream) {
  const std::uint64_t key = stream.bits(~std::uint64_t{0});
  key_ = {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)};
}

// Rational approximations by P. J. Acklam (2003), central region and tails.
double inverse_normal(double p) {
  static constexpr std::array a{-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                                1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
  static constexpr std::array b{-5.447609879822406e+01, 1.615858368580409e+02,  -1.556989798598866e+02,
                                6.680131188771972e+01,  -1.328068155288572e+01, 1.0};
  static constexpr std::array c{-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                                -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
  static constexpr std::array d{7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                                3.754408661907416e+00, 1.0};
  constexpr double low = 0.02425;
  if (p < low || p > 1 - low) {
    const double tail = p < low ? p : 1 - p;
    const double q = std::sqrt(-2 * portable_log(tail));
    const double x = horner(c, q) / horner(d, q);
    return p < low ? x : -x;
  }
  const double q = p - 0.5, r = q * q;
  return horner(a, r) * q / horner(b, r);
}

void fill_normal(const Tensor& t, const RandomStream& stream, double mean, double sigma,
                 std::uint64_t first) {
  fill_with(t, stream, first, [=](double u) { return std::fma(sigma, inverse_normal(u), mean); });
}

void fill_uniform(const Tensor& t, const RandomStream& stream, double low, double high, std::uint64_t first) {
  fill_with(t, stream, first, [=](double u) { return std::fma(high - low, u, low); });
}

}  // namespace nemocube
