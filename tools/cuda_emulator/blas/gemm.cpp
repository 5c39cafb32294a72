#include "blas/gemm.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "machine/thread_object.h"
#include "runtime/library.h"

namespace emulator::blas {
namespace {

constexpr std::size_t block_rows = 12, block_columns = 4, depth = 256;
static_assert(tile_rows % block_rows == 0 && tile_columns % block_columns == 0);
/// Multiply-adds below which threads cost more than they bring.
constexpr double worth_threads = 4e6;

/// Packs `wide` x `deep` elements into panels of P: element (i, l) goes to panel i / P, place l * P + i % P. Missing ones are 0.
template <std::size_t P, class T>
void pack(const T* data, std::ptrdiff_t stride, std::ptrdiff_t deep_stride, std::size_t wide,
          std::size_t deep, double* to) {
  for (std::size_t first = 0; first < wide; first += P, to += P * deep) {
    const std::size_t count = std::min(P, wide - first);
    const T* from = data + static_cast<std::ptrdiff_t>(first) * stride;
    if (count < P) std::fill_n(to, P * deep, 0.0);
    if (stride == 1 && count == P) {
      for (std::size_t l = 0; l < deep; ++l, from += deep_stride) {
        for (std::size_t i = 0; i < P; ++i) to[l * P + i] = to_double(from[i]);
      }
    } else {
      for (std::size_t i = 0; i < count; ++i) {
        const T* element = from + static_cast<std::ptrdiff_t>(i) * stride;
        for (std::size_t l = 0; l < deep; ++l, element += deep_stride) to[l * P + i] = to_double(*element);
      }
    }
  }
}

template <std::size_t P>
void pack(const View& view, std::ptrdiff_t stride, std::ptrdiff_t deep_stride, std::size_t first,
          std::size_t first_deep, std::size_t wide, std::size_t deep, InputRounding rounding,
          std::vector<double>& to) {
  const std::size_t size = (wide + P - 1) / P * P * deep;
  if (to.size() < size) to.resize(size);
  const std::ptrdiff_t offset =
      static_cast<std::ptrdiff_t>(first) * stride + static_cast<std::ptrdiff_t>(first_deep) * deep_stride;
  with_type(view.type, [&](auto* none) {
    using T = std::remove_pointer_t<decltype(none)>;
    pack<P>(static_cast<const T*>(view.data) + offset, stride, deep_stride, wide, deep, to.data());
  });
  if (rounding == InputRounding::none) return;
  for (std::size_t i = 0; i < size; ++i) to[i] = round_input(rounding, to[i]);
}

/// sums[i + j * tile_rows] += a panel x b panel, 12 x 4 elements, in the order of k.
void multiply_block(std::size_t deep, const double* a, const double* b, double* sums) {
  __m256d c[block_columns][3];
  for (std::size_t j = 0; j < block_columns; ++j) {
    for (std::size_t i = 0; i < 3; ++i) c[j][i] = _mm256_loadu_pd(sums + j * tile_rows + 4 * i);
  }
  for (std::size_t l = 0; l < deep; ++l, a += block_rows, b += block_columns) {
    const __m256d a0 = _mm256_loadu_pd(a), a1 = _mm256_loadu_pd(a + 4), a2 = _mm256_loadu_pd(a + 8);
    for (std::size_t j = 0; j < block_columns; ++j) {
      const __m256d bj = _mm256_broadcast_sd(b + j);
      c[j][0] = _mm256_fmadd_pd(a0, bj, c[j][0]);
      c[j][1] = _mm256_fmadd_pd(a1, bj, c[j][1]);
      c[j][2] = _mm256_fmadd_pd(a2, bj, c[j][2]);
    }
  }
  for (std::size_t j = 0; j < block_columns; ++j) {
    for (std::size_t i = 0; i < 3; ++i) _mm256_storeu_pd(sums + j * tile_rows + 4 * i, c[j][i]);
  }
}

/// Panels of both factors, and the sums of a tile.
struct TileMemory {
  std::vector<double> a, b, sums;
};

void multiply_tile(const Product& product, InputRounding rounding, Tile& tile,
                   const std::function<void(const Tile&)>& use) {
  auto& [a, b, sums] = ThreadObject<TileMemory>::get();
  sums.assign(tile_rows * tile_columns, 0.0);
  for (std::size_t l = 0; l < product.k; l += depth) {
    const std::size_t deep = std::min(depth, product.k - l);
    pack<block_rows>(product.a, product.a.row_stride, product.a.column_stride, tile.row, l, tile.rows, deep,
                     rounding, a);
    pack<block_columns>(product.b, product.b.column_stride, product.b.row_stride, tile.column, l,
                        tile.columns, deep, rounding, b);
    for (std::size_t j = 0; j < tile.columns; j += block_columns) {
      for (std::size_t i = 0; i < tile.rows; i += block_rows) {
        multiply_block(deep, a.data() + i * deep, b.data() + j * deep, sums.data() + i + j * tile_rows);
      }
    }
  }
  tile.sums = sums.data();
  tile.pitch = tile_rows;
  use(tile);
}

}  // namespace

void parallel(std::size_t count, int threads, const std::function<void(std::size_t)>& task) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) task(i);
  };
  std::vector<std::thread> helpers;
  const std::size_t wanted = std::min(count, static_cast<std::size_t>(std::max(threads, 1)));
  for (std::size_t i = 1; i < wanted; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
}

void multiply(std::span<const Product> products, InputRounding rounding,
              const std::function<void(const Tile&)>& use) {
  std::vector<Tile> tiles;
  double multiply_adds = 0;
  for (std::size_t i = 0; i < products.size(); ++i) {
    const Product& product = products[i];
    multiply_adds +=
        static_cast<double>(product.m) * static_cast<double>(product.n) * static_cast<double>(product.k);
    for (std::size_t column = 0; column < product.n; column += tile_columns) {
      for (std::size_t row = 0; row < product.m; row += tile_rows) {
        tiles.push_back({i, row, column, std::min(tile_rows, product.m - row),
                         std::min(tile_columns, product.n - column), nullptr, 0});
      }
    }
  }
  parallel(tiles.size(), multiply_adds < worth_threads ? 1 : cuda_emulator_threads(),
           [&](std::size_t i) { multiply_tile(products[tiles[i].product], rounding, tiles[i], use); });
}

}  // namespace emulator::blas
