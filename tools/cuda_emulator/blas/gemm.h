#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "blas/gemm_values.h"

/// Products of matrices on the host.
namespace emulator::blas {

/// Element (i, j) lies at data[i * row_stride + j * column_stride].
struct View {
  const void* data = nullptr;
  cudaDataType type = CUDA_R_32F;
  std::ptrdiff_t row_stride = 1, column_stride = 0;
};

/// One product of a [m, k] and b [k, n].
struct Product {
  View a, b;
  std::size_t m = 0, n = 0, k = 0;
};

/// A part of a product: sums[i + j * pitch] is element (row + i, column + j) of a * b.
struct Tile {
  std::size_t product = 0, row = 0, column = 0, rows = 0, columns = 0;
  const double* sums = nullptr;
  std::size_t pitch = 0;
};

/// Rows of tiles are at most this high, columns this wide.
constexpr std::size_t tile_rows = 96, tile_columns = 192;

/// Computes all products and hands them to `use` in tiles, each element once. Every sum is a chain of fused multiply-adds of doubles
/// in the order of k that begins with 0, whatever the sizes and the number of threads. Products of f32, f16, bf16 and integers are exact
/// in a double. `use` is called from several threads at once when the products are large.
void multiply(std::span<const Product> products, InputRounding rounding,
              const std::function<void(const Tile&)>& use);

/// Runs task(0), ..., task(count - 1), each once, on at most `threads` threads.
void parallel(std::size_t count, int threads, const std::function<void(std::size_t)>& task);

}  // namespace emulator::blas
