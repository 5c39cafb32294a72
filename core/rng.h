#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include "core/tensor.h"

/// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy
/// as 1, 2, 3", SC 2011).
///
/// Draw i of the stream (seed, name) depends on seed, name and i alone. A slice of a parameter
/// therefore gets the values that the whole parameter has there, in any order of drawing and
/// on any number of ranks. All arithmetic is integer or correctly rounded f64 (no libm), so
/// every machine and device gives the same bits.
namespace nemocube {

/// One Philox block: 128 random bits for (counter, key).
inline std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> c, std::array<std::uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * c[0], b = std::uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<std::uint32_t>(a)};
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return c;
}

class RandomStream {
 public:
  /// `name` is the parameter's global name or the purpose of the draw.
  RandomStream(std::uint64_t seed, std::string_view name);
  std::array<std::uint64_t, 2> block(std::uint64_t b) const;  ///< bits(2 b) and bits(2 b + 1)
  std::uint64_t bits(std::uint64_t i) const;                  ///< 64 random bits
  double uniform(std::uint64_t i) const;                      ///< in (0, 1), a multiple of 2^-52 plus 2^-53
  static double to_uniform(std::uint64_t bits);
  double normal(std::uint64_t i) const;  ///< standard normal, by the inverse distribution function
  std::uint64_t below(std::uint64_t i, std::uint64_t n) const;  ///< in [0, n), unbiased to 2^-64 n

 private:
  std::array<std::uint32_t, 2> key_;
  std::array<std::uint32_t, 2> stream_;
};

/// Draws that two numbers address: draw (row, column) depends on the stream, its row and its column alone. A
/// Philox block holds the draws of four neighbouring columns.
class RandomTable {
 public:
  explicit RandomTable(const RandomStream& stream);
  /// 32 random bits each for the columns 4 b to 4 b + 3 of a row.
  std::array<std::uint32_t, 4> block(std::uint64_t row, std::uint64_t b) const {
    return philox({static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(row >> 32),
                   static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(b >> 32)},
                  key_);
  }
  std::uint32_t bits(std::uint64_t row, std::uint64_t column) const {
    return block(row, column / 4)[column % 4];
  }
  /// The key of the stream's Philox blocks, whose counter is {row, b}, each with the lower half first.
  const std::array<std::uint32_t, 2>& key() const { return key_; }

 private:
  std::array<std::uint32_t, 2> key_;
};

/// t[j] = mean + sigma * normal(first + j), elements in order.
void fill_normal(const Tensor& t, const RandomStream& stream, double mean, double sigma,
                 std::uint64_t first = 0);
/// t[j] = low + (high - low) * uniform(first + j).
void fill_uniform(const Tensor& t, const RandomStream& stream, double low, double high,
                  std::uint64_t first = 0);

/// FNV-1a, 64 bit: stable names for streams and files.
std::uint64_t hash_name(std::string_view text);
/// Inverse of the standard normal distribution function, relative error below 1.2e-9; p in (0, 1).
double inverse_normal(double p);

}  // namespace nemocube
