#pragma once
#include <cstdint>

#include "core/rng.h"

/// The random numbers of core/rng.h in kernels: the same bits.
namespace nemocube::cuda {

/// philox(): 128 random bits for (counter, key).
__device__ inline uint4 philox(uint4 c, uint2 k) {
  constexpr unsigned a = 0xD2511F53U, b = 0xCD9E8D57U;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    c = {__umulhi(b, c.z) ^ c.y ^ k.x, b * c.z, __umulhi(a, c.x) ^ c.w ^ k.y, a * c.x};
    k = {k.x + 0x9E3779B9U, k.y + 0xBB67AE85U};
  }
  return c;
}

inline uint2 key_of(const RandomTable& table) { return {table.key()[0], table.key()[1]}; }

/// One row of a RandomTable, from key_of() the table.
class TableRow {
 public:
  __device__ TableRow(uint2 key, std::uint64_t row) : key_(key), row_(row) {}
  /// Columns that share a block, asked for one after another, share the work for the block as well.
  __device__ unsigned bits(std::uint64_t column) {
    const std::uint64_t b = column / 4;
    if (b != made_) {
      block_ = philox({lower(row_), lower(row_ >> 32), lower(b), lower(b >> 32)}, key_);
      made_ = b;
    }
    const unsigned place = lower(column) % 4;
    return place < 2 ? (place == 0 ? block_.x : block_.y) : (place == 2 ? block_.z : block_.w);
  }

 private:
  static __device__ unsigned lower(std::uint64_t n) { return static_cast<unsigned>(n); }
  uint2 key_;
  std::uint64_t row_, made_ = ~std::uint64_t{0};  // a block of no column
  uint4 block_{};
};

}  // namespace nemocube::cuda
