#include <algorithm>
#include <array>

#include "core/parallel_for.h"
#include "ops/lora/lora_kernels.h"

namespace nemocube::cpu {
namespace {

constexpr std::int64_t piece = 1024;  // columns whose draws are made at a time; a multiple of 4
using Draws = std::array<std::uint32_t, piece>;

/// Those of `count` columns of a row, from the multiple of 4 `first` on.
void draw(Draws& draws, const KeptElements& kept, std::int64_t r, std::int64_t first, std::int64_t count) {
  const RandomTable table = *kept.draws;
  const auto row = static_cast<std::uint64_t>(kept.row_numbers.data<std::int64_t>()[r]);
  if (!kept.column_numbers) {
    const auto block = static_cast<std::uint64_t>(first / 4);
    for (std::size_t b = 0; b < static_cast<std::size_t>((count + 3) / 4); ++b) {  // vectorised
      const auto of_block = table.block(row, block + b);
      for (std::size_t i = 0; i < 4; ++i) draws[4 * b + i] = of_block[i];
    }
    return;
  }
  const std::int64_t* const columns = kept.column_numbers.data<std::int64_t>() + first;
  std::uint64_t made = ~std::uint64_t{0};  // a block of no column
  std::array<std::uint32_t, 4> block{};
  for (std::int64_t c = 0; c < count; ++c) {
    const auto column = static_cast<std::uint64_t>(columns[c]);
    if (column / 4 != made) block = table.block(row, made = column / 4);
    draws[static_cast<std::size_t>(c)] = block[column % 4];
  }
}

template <class T, class From>
void scale_rows(const Output& to, const Tensor& from, const KeptElements& kept) {
  using A = acc_t<T>;
  const std::int64_t cols = from.cols();
  const A factor = static_cast<A>(kept.factor);
  parallel_for(from.rows(), 1 + 16384 / (cols + 1), [&](std::int64_t begin, std::int64_t end) {
    Draws draws;
    std::array<T, piece> scaled;  // in memory, so that no product joins a sum without its rounding
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t first = 0; first < cols; first += piece) {
        const From* const p = from.row<From>(r) + first;
        T* const q = to.to.row<T>(r) + first;
        T* const values = to.how == Into::set ? q : scaled.data();
        const std::int64_t count = std::min(piece, cols - first);
        if (kept.all()) {
          for (std::int64_t c = 0; c < count; ++c) values[c] = static_cast<T>(factor * static_cast<A>(p[c]));
        } else {
          draw(draws, kept, r, first, count);
          for (std::int64_t c = 0; c < count; ++c)
            values[c] = draws[static_cast<std::size_t>(c)] < kept.threshold
                            ? T()
                            : static_cast<T>(factor * static_cast<A>(p[c]));
        }
        if (to.how == Into::set) continue;
        for (std::int64_t c = 0; c < count; ++c)
          q[c] = static_cast<T>(static_cast<A>(q[c]) + static_cast<A>(values[c]));
      }
  });
}

}  // namespace

void scale_kept(const Output& to, const Tensor& from, const KeptElements& kept) {
  visit_float("lora", to.to.dtype(), [&]<class T>(TypeTag<T>) {
    if constexpr (std::is_same_v<T, bf16>)
      if (from.dtype() == DType::f32) return scale_rows<T, float>(to, from, kept);
    scale_rows<T, T>(to, from, kept);
  });
}

}  // namespace nemocube::cpu
