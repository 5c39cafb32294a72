#include <omp.h>

#include <algorithm>

#include "core/parallel_for.h"
#include "ops/matmul/matmul_cpu.h"
#include "ops/transpose.h"

namespace nemocube::cpu {
namespace {

constexpr std::int64_t crowding_bytes = 1024, crowding_bytes_avx512 = 4096;
constexpr std::int64_t least_rows = 32;  // rows of C; for fewer rows, copies cost more time than they save
constexpr std::int64_t k_block = 256;    // summands copied at a time, so that the copies stay in cache

/// Without AVX-512, oneDNN does not copy the operands of an f32 product in which 1/M + 1/N is at least this
/// (FORCE_NOCOPY_THRESH of its src/cpu/x64/gemm/gemm_driver.cpp; the same in releases 1.0 to 2.6).
constexpr double no_copy_threshold = 0.0038;
/// The same with AVX-512 (FORCE_NOCOPY_THRESH of nocopy_checker_avx512 in the same file), but for a B whose
/// rows are a multiple of so many values apart: then oneDNN copies both operands.
constexpr double no_copy_threshold_avx512 = 0.00196;
constexpr std::int64_t copied_b_step = 1024;
constexpr std::int64_t least_cols = 256;  // columns of C; for fewer columns, copies cost as much as they save

double narrowness(const Sizes& sizes) {
  return 1.0 / static_cast<double>(sizes.m) + 1.0 / static_cast<double>(sizes.n);
}

bool lies_crowded(const Tensor& t, std::int64_t bytes = crowding_bytes) {
  return t.row_stride() * size_of(t.dtype()) % bytes == 0;
}

Tensor copy_of(const Tensor& from) {
  const Tensor to = rows_apart(from.rows(), from.cols());
  to.copy_from(from);
  return to;
}

Tensor transpose_of(const Tensor& from) {
  constexpr std::int64_t block = 64;  // rows whose cache lines stay in cache until every column is read
  const Tensor to = rows_apart(from.cols(), from.rows());
  for (std::int64_t r = 0; r < from.rows(); r += block)
    transpose(to.data<float>() + r, to.row_stride(), from.row<float>(r), from.row_stride(),
              std::min(block, from.rows() - r), from.cols());
  return to;
}

// oneDNN reads a transposed A, or a B that is not transposed, in narrow strips of columns, row after row.
// When the operand is crowded, such a strip lies in few cache sets. oneDNN reads an A that is not transposed,
// or a transposed B, along its rows; a copy does not help there.
bool wants_copy(const Operand& m, bool when_transposed) {
  return m.transposed == when_transposed && lies_crowded(m.tensor);
}

}  // namespace

Tensor rows_apart(std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t line = 16;  // values of a cache line
  const std::int64_t lines = (cols + line - 1) / line | 1;
  return Tensor::empty({rows, lines * line}, DType::f32, Device::cpu).narrow(-1, 0, cols);
}

bool rereads_crowded(const Tensor& a, const Operand& b, const Sizes& sizes) {
  if (a.dtype() != DType::f32 || !lies_crowded(a, crowding_bytes_avx512) || sizes.n < least_cols)
    return false;
  return narrowness(sizes) >= no_copy_threshold_avx512 && !b.transposed &&
         b.tensor.row_stride() % copied_b_step != 0;
}

bool is_crowded(const Operand& a, const Operand& b, const Sizes& sizes) {
  if (a.tensor.dtype() != DType::f32 || onednn_has_avx512() || sizes.m < least_rows) return false;
  return narrowness(sizes) >= no_copy_threshold && (wants_copy(a, true) || wants_copy(b, false));
}

void crowded_product(const Output& c, const Operand& a, const Operand& b, const Sizes& sizes) {
  const Tensor to = c.to.reshape({sizes.m, sizes.n});
  const Tensor left = a.tensor.reshape({a.tensor.rows(), a.tensor.cols()});
  const Tensor right = b.tensor.reshape({b.tensor.rows(), b.tensor.cols()});
  const bool copy_a = wants_copy(a, true), copy_b = wants_copy(b, false);
  const std::int64_t threads = omp_in_parallel() ? 1 : omp_get_max_threads();
  const std::int64_t slices = sizes.m >= threads * least_slice ? threads : 1;
  const auto slice = [&](std::int64_t begin, std::int64_t rows) {
    for (std::int64_t k = 0; k < sizes.k; k += k_block) {
      const std::int64_t length = std::min(k_block, sizes.k - k);
      const auto k_of = [&](const Tensor& t, bool in_rows) { return t.narrow(in_rows ? 0 : 1, k, length); };
      Operand a_part{k_of(left, a.transposed).narrow(a.transposed ? 1 : 0, begin, rows), a.transposed};
      Operand b_part{k_of(right, !b.transposed), b.transposed};
      if (copy_a) a_part = {transpose_of(a_part.tensor), false};
      if (copy_b) b_part.tensor = copy_of(b_part.tensor);
      const Output part{to.narrow(0, begin, rows), k == 0 ? c.how : Into::add};
      const bool done = onednn_product(part, a_part, b_part, {rows, sizes.n, length});
      expect(done, "oneDNN has no f32 product");
    }
  };
  parallel_for(slices, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t begin = sizes.m * i / slices;
      slice(begin, sizes.m * (i + 1) / slices - begin);
    }
  });
}

}  // namespace nemocube::cpu
