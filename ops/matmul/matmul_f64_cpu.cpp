#include <algorithm>

#include "core/parallel_for.h"
#include "ops/matmul/matmul_cpu.h"

namespace nemocube::cpu {
namespace {

// op(x) [rows, cols]: x itself, or a transposed copy.
Tensor plain(const Operand& x, std::int64_t rows, std::int64_t cols) {
  if (!x.transposed) return x.tensor;
  constexpr std::int64_t tile = 32;
  const Tensor y = Tensor::empty({rows, cols}, DType::f64, Device::cpu);
  parallel_for(rows, tile, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c0 = 0; c0 < cols; c0 += tile)
      for (std::int64_t r = begin; r < end; ++r)
        for (std::int64_t c = c0; c < std::min(c0 + tile, cols); ++c)
          y.row<double>(r)[c] = x.tensor.row<double>(c)[r];
  });
  return y;
}

}  // namespace

void f64_product(const Output& c, const Operand& a, const Operand& b, const Sizes& sizes) {
  constexpr std::int64_t block_n = 512, block_k = 64;  // a block of b (256 KiB) stays in the second cache
  const Tensor left = plain(a, sizes.m, sizes.k), right = plain(b, sizes.k, sizes.n);
  parallel_for(sizes.m, 1 + 32768 / (sizes.n * sizes.k), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n0 = 0; n0 < sizes.n; n0 += block_n) {
      const std::int64_t columns = std::min(block_n, sizes.n - n0);
      for (std::int64_t k0 = 0; k0 < sizes.k; k0 += block_k) {
        const std::int64_t k_end = std::min(k0 + block_k, sizes.k);
        for (std::int64_t i = begin; i < end; ++i) {
          double* __restrict to = c.to.row<double>(i) + n0;
          const double* factors = left.row<double>(i);
          if (k0 == 0 && c.how == Into::set) std::fill_n(to, columns, 0.0);
          for (std::int64_t k = k0; k < k_end; ++k) {
            const double f = factors[k];
            const double* __restrict from = right.row<double>(k) + n0;
            for (std::int64_t j = 0; j < columns; ++j) to[j] += f * from[j];
          }
        }
      }
    }
  });
}

}  // namespace nemocube::cpu
