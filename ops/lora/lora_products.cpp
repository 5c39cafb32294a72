#include "ops/lora/lora_products.h"

#include <algorithm>

#include "core/profile.h"
#include "ops/matmul/matmul.h"

namespace nemocube {
namespace {

// Chunks that stay in the L2 cache of a GPU, and are large enough to occupy it.
constexpr std::int64_t elements_at_once = std::int64_t{1} << 22, fewest_rows = 64;

void scale_timed(const Output& to, const Tensor& from, const KeptElements& kept) {
  if (from.numel() == 0) return;
  static Zone zone("lora/scale");
  const ZoneTimer timer(zone);
  scale_kept(to, from, kept);
}

/// Calls fn(first row, rows) for chunks of the rows; once where there are none.
template <class Fn>
void for_chunks(std::int64_t rows, std::int64_t at_once, Fn&& fn) {
  std::int64_t first = 0;
  do {
    const std::int64_t count = std::min(at_once, rows - first);
    fn(first, count);
    first += count;
  } while (first < rows);
}

/// Calls fn(first row, rows, kept(those rows)).
template <class Fn>
void for_kept(const Tensor& wide, const KeptElements& kept, std::int64_t at_once, Fn&& fn) {
  if (kept.all()) return fn(std::int64_t{0}, wide.rows(), wide);
  for_chunks(wide.rows(), at_once, [&](std::int64_t first, std::int64_t count) {
    const Tensor chunk = Tensor::empty({count, wide.cols()}, wide.dtype(), wide.device());
    scale_timed({chunk, Into::set}, wide.narrow(0, first, count), kept.of_rows(first, count));
    fn(first, count, chunk);
  });
}

}  // namespace

std::int64_t lora_rows_at_once(std::int64_t cols) {
  return std::max(fewest_rows,
                  elements_at_once / std::max<std::int64_t>(cols, 1) / fewest_rows * fewest_rows);
}

Tensor scaled_narrow(const Tensor& narrow, DType dtype, double factor) {
  const Tensor result =
      narrow.dtype() == dtype ? narrow : Tensor::empty(narrow.shape(), dtype, narrow.device());
  scale_timed({result, Into::set}, narrow, {.factor = factor});
  return result;
}

Tensor narrow_product(const Tensor& wide, const Tensor& weight, bool transpose, double factor,
                      const KeptElements& kept, std::int64_t rows_at_once) {
  const Tensor sums = Tensor::empty({wide.rows(), transpose ? weight.rows() : weight.cols()},
                                    accumulate_dtype(wide.dtype()), wide.device());
  for_kept(wide, kept, rows_at_once, [&](std::int64_t first, std::int64_t count, const Tensor& chunk) {
    matmul({sums.narrow(0, first, count), Into::set}, chunk, false, weight, transpose);
  });
  return scaled_narrow(sums, wide.dtype(), factor);
}

void wide_product(const Output& wide, const Tensor& narrow, const Tensor& weight, bool transpose,
                  const KeptElements& kept, std::int64_t rows_at_once) {
  // In chunks on every path: a product in place and one that is added afterwards then have the same bits.
  for_chunks(narrow.rows(), rows_at_once, [&](std::int64_t first, std::int64_t count) {
    const Tensor from = narrow.narrow(0, first, count), to = wide.to.narrow(0, first, count);
    if (kept.all() && wide.how == Into::set) return matmul({to, Into::set}, from, false, weight, transpose);
    const Tensor chunk = Tensor::empty(to.shape(), accumulate_dtype(to.dtype()), to.device());
    matmul({chunk, Into::set}, from, false, weight, transpose);
    scale_timed({to, wide.how}, chunk, kept.of_rows(first, count));
  });
}

void weight_product(const Output& weight, const Tensor& narrow, const Tensor& wide, bool transpose,
                    const KeptElements& kept, std::int64_t rows_at_once) {
  Into how = weight.how;
  for_kept(wide, kept, rows_at_once, [&](std::int64_t first, std::int64_t count, const Tensor& chunk) {
    const Tensor part = narrow.narrow(0, first, count);
    matmul({weight.to, how}, transpose ? chunk : part, true, transpose ? part : chunk, false);
    how = Into::add;
  });
}

}  // namespace nemocube
