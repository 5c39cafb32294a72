#include "core/cuda/elementwise.cuh"
#include "core/cuda/random.cuh"
#include "ops/lora/lora_kernels.h"

namespace nemocube::cuda {
namespace {

/// KeptElements of device code.
struct Kept {
  float factor;
  uint2 key;
  unsigned threshold;
  const std::int64_t *row_numbers, *column_numbers;
};

Kept kept_of(const KeptElements& kept) {
  const auto numbers = [](const Tensor& t) { return t ? data_of<std::int64_t>(t) : nullptr; };
  return {static_cast<float>(kept.factor), kept.draws ? key_of(*kept.draws) : uint2{}, kept.threshold,
          numbers(kept.row_numbers), numbers(kept.column_numbers)};
}

// `to` may be `from`.
template <class T, class From, int N, bool all>
__global__ void scale_kept_kernel(RowBlocks grid, Rows<T> to, bool add, Rows<From> from, Kept kept) {
  for_own_pack<N>(grid, [&](std::int64_t r, std::int64_t c, std::int64_t count) {
    float v[N];
    Pack<From, N>::load(from.row(r) + c, count).read(v);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = __fmul_rn(v[i], kept.factor);  // joins no sum without its rounding
    if constexpr (!all) {
      TableRow draws(kept.key, static_cast<std::uint64_t>(kept.row_numbers[r]));
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (i >= count) break;
        const std::int64_t column = kept.column_numbers ? kept.column_numbers[c + i] : c + i;
        if (draws.bits(static_cast<std::uint64_t>(column)) < kept.threshold) v[i] = 0;
      }
    }
    if (add) {
      float old[N];
      Pack<T, N>::load(to.row(r) + c, count).read(old);
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = old[i] + to_float(rounded<T>(v[i]));
    }
    Pack<T, N>::of(v).store(to.row(r) + c, count);
  });
}

template <class T, class From, int N>
void scale_packs(const Output& to, const Tensor& from, const KeptElements& kept) {
  launch_elementwise<N>(
      "lora scale", kept.all() ? scale_kept_kernel<T, From, N, true> : scale_kept_kernel<T, From, N, false>,
      from.rows(), from.cols(), rows_of<T>(to.to), to.how == Into::add, rows_of<From>(from), kept_of(kept));
}

template <class T, class From>
void scale_rows(const Output& to, const Tensor& from, const KeptElements& kept) {
  // An access of 16 bytes on the wider side.
  constexpr int pack = whole_pack<std::conditional_t<sizeof(From) >= sizeof(T), From, T>>;
  rows_aligned(to.to, from) ? scale_packs<T, From, pack>(to, from, kept)
                            : scale_packs<T, From, 1>(to, from, kept);
}

void scale(const Output& any_to, const Tensor& any_from, const KeptElements& kept) {
  const bool one_row = kept.all() && all_contiguous(any_to.to, any_from);
  const Output to{as_one_row(any_to.to, one_row), any_to.how};
  const Tensor from = as_one_row(any_from, one_row);
  if (from.numel() == 0) return;
  visit_storage("lora", to.to.dtype(), [&]<class T>(TypeTag<T>) {
    if constexpr (!std::is_same_v<T, float>)
      if (from.dtype() == DType::f32) return scale_rows<T, float>(to, from, kept);
    scale_rows<T, T>(to, from, kept);
  });
}

const Provide provided[] = {{scale_kept, scale}};

}  // namespace
}  // namespace nemocube::cuda
