#pragma once
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cstddef>
#include <random>
#include <vector>

#include "blas/gemm_values.h"

namespace emulator::blas {

/// A column-major matrix on the host whose columns lie `pitch` elements apart. The elements between columns are NaN.
struct TestMatrix {
  cudaDataType type;
  std::size_t rows, columns, pitch;
  std::vector<std::byte> bytes;

  TestMatrix(cudaDataType type_, std::size_t rows_, std::size_t columns_, std::size_t gap = 0)
      : type(type_),
        rows(rows_),
        columns(columns_),
        pitch(rows_ + gap),
        bytes(pitch * columns * element_bytes(type), std::byte{0xff}) {}

  /// Integers from -100 to 100, or values with all the type's digits between -1 and 1.
  static TestMatrix random(cudaDataType type, std::size_t rows, std::size_t columns, std::size_t gap,
                           unsigned seed) {
    TestMatrix matrix(type, rows, columns, gap);
    std::mt19937 engine(seed);
    const bool integer = type == CUDA_R_8I || type == CUDA_R_32I;
    std::uniform_real_distribution<double> real(-1, 1);
    std::uniform_int_distribution<int> whole(-100, 100);
    for (std::size_t j = 0; j < columns; ++j) {
      for (std::size_t i = 0; i < rows; ++i) matrix.set(i, j, integer ? whole(engine) : real(engine));
    }
    return matrix;
  }
  double at(std::size_t i, std::size_t j) const {
    return load(type, bytes.data(), static_cast<std::ptrdiff_t>(i + j * pitch));
  }
  void set(std::size_t i, std::size_t j, double value) {
    store(type, bytes.data(), static_cast<std::ptrdiff_t>(i + j * pitch), value);
  }
  void fill_with_nan() { bytes.assign(bytes.size(), std::byte{0xff}); }
  /// Some of the columns.
  TestMatrix part(std::size_t first, std::size_t count) const {
    TestMatrix matrix(type, rows, count, pitch - rows);
    const auto offset = static_cast<std::ptrdiff_t>(first * pitch * element_bytes(type));
    matrix.bytes.assign(bytes.begin() + offset,
                        bytes.begin() + offset + static_cast<std::ptrdiff_t>(matrix.bytes.size()));
    return matrix;
  }
};

/// A copy of a matrix in device memory.
class DeviceMatrix {
 public:
  explicit DeviceMatrix(const TestMatrix& matrix) : shape_(matrix) {
    REQUIRE(cudaMalloc(&data, matrix.bytes.size()) == cudaSuccess);
    REQUIRE(cudaMemcpy(data, matrix.bytes.data(), matrix.bytes.size(), cudaMemcpyHostToDevice) ==
            cudaSuccess);
  }
  ~DeviceMatrix() { cudaFree(data); }
  DeviceMatrix(const DeviceMatrix&) = delete;
  DeviceMatrix& operator=(const DeviceMatrix&) = delete;

  TestMatrix get() const {
    TestMatrix matrix = shape_;
    REQUIRE(cudaMemcpy(matrix.bytes.data(), data, matrix.bytes.size(), cudaMemcpyDeviceToHost) ==
            cudaSuccess);
    return matrix;
  }
  void* data = nullptr;

 private:
  TestMatrix shape_;
};

}  // namespace emulator::blas
