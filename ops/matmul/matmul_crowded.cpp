#include <omp.h>

#include <algorithm>
#include <cstring>

#include "core/parallel_for.h"
#include "ops/matmul/kernels.h"
#include "ops/transpose.h"

namespace nemocube::detail {
namespace {

constexpr std::int64_t crowding_bytes = 1024, padding = 16;
constexpr std::int64_t least_rows = 32;    // of C, for copies to pay
constexpr std::int64_t least_slice = 128;  // rows of C for each thread, which makes copies of its own
constexpr std::int64_t k_block = 256;      // summands at a time, whose copies stay in cache

bool lies_crowded(const Tensor& t) { return t.row_stride() * size_of(t.dtype()) % crowding_bytes == 0; }

// [rows, cols] with room between the rows.
Tensor apart(std::int64_t rows, std::int64_t cols) {
  return Tensor::empty({rows, (cols + padding - 1) / padding * padding + padding}, DType::f32)
      .narrow(-1, 0, cols);
}

Tensor copy_of(const Tensor& from) {
  const Tensor to = apart(from.rows(), from.cols());
  to.copy_from(from);
  return to;
}

Tensor transpose_of(const Tensor& from) {
  constexpr std::int64_t block = 64;  // rows whose cache lines stay until every column is read
  const Tensor to = apart(from.cols(), from.rows());
  for (std::int64_t r = 0; r < from.rows(); r += block)
    transpose(to.data<float>() + r, to.row_stride(), from.row<float>(r), from.row_stride(),
              std::min(block, from.rows() - r), from.cols());
  return to;
}

}  // namespace

bool is_crowded(const Operand& a, const Operand& b, const Sizes& sizes) {
  if (a.tensor.dtype() != DType::f32 || onednn_has_avx512() || sizes.m < least_rows) return false;
  if (1.0 / static_cast<double>(sizes.m) + 1.0 / static_cast<double>(sizes.n) < 0.0038) return false;
  return (a.transposed && lies_crowded(a.tensor)) || (!b.transposed && lies_crowded(b.tensor));
}

void crowded_product(const Grad& c, const Operand& a, const Operand& b, const Sizes& sizes) {
  const Tensor to = c.to.reshape({sizes.m, sizes.n});
  const Tensor left = a.tensor.reshape({a.tensor.rows(), a.tensor.cols()});
  const Tensor right = b.tensor.reshape({b.tensor.rows(), b.tensor.cols()});
  const std::int64_t threads = omp_in_parallel() ? 1 : omp_get_max_threads();
  const std::int64_t slices = std::clamp<std::int64_t>(sizes.m / least_slice, 1, threads);
  const auto slice = [&](std::int64_t begin, std::int64_t rows) {
    for (std::int64_t k = 0; k < sizes.k; k += k_block) {
      const std::int64_t length = std::min(k_block, sizes.k - k);
      const Tensor a_part = a.transposed ? transpose_of(left.narrow(0, k, length).narrow(1, begin, rows))
                                         : left.narrow(0, begin, rows).narrow(1, k, length);
      const Tensor b_part = b.transposed ? right.narrow(1, k, length) : copy_of(right.narrow(0, k, length));
      const Grad part{to.narrow(0, begin, rows), k == 0 ? c.how : Into::add};
      expect(onednn_product(part, {a_part, false}, {b_part, b.transposed}, {rows, sizes.n, length}),
             "oneDNN has no f32 product");
    }
  };
  parallel_for(slices, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t begin = sizes.m * i / slices;
      slice(begin, sizes.m * (i + 1) / slices - begin);
    }
  });
}

}  // namespace nemocube::detail
