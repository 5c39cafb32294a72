#pragma once
#include <cublas_v2.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "blas/gemm.h"
#include "blas/refuse.h"
#include "runtime/library.h"

/// How the libraries' calls become work of a stream, and how work gets at matrices in device memory.
namespace emulator::blas {

/// Puts a function into a stream: run(operation) is called in stream order and says whether it could do its work.
template <class F>
cublasStatus_t enqueue(cudaStream_t stream, const char* what, F run) {
  auto* data = new F(std::move(run));
  const int error = cuda_emulator_enqueue(
      stream, what,
      [](void* work, unsigned operation) -> int {
        return (*static_cast<F*>(work))(operation) ? cuda_emulator_done : cuda_emulator_failed;
      },
      [](void* work) { delete static_cast<F*>(work); }, data);
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

/// For the work of one call: the stream's operation and the call's name in messages.
struct Access {
  unsigned operation;
  const char* what;

  /// Host address of a range that the work uses, or nullptr after a report.
  void* host(const void* pointer, std::size_t bytes) const {
    return cuda_emulator_host(pointer, bytes, what);
  }
  void touch(const void* pointer, std::size_t bytes, bool write) const {
    cuda_emulator_touch(operation, pointer, bytes, write, what);
  }
  /// host() for a range that is read (written) as a whole. Contents may be read before the write.
  const void* read(const void* pointer, std::size_t bytes) const;
  void* write(const void* pointer, std::size_t bytes) const;
};

/// alpha or beta: a host pointer is read when the call is made, a device pointer in stream order.
class Scalar {
 public:
  Scalar() = default;
  Scalar(const void* pointer, cudaDataType type, bool on_device);
  explicit Scalar(double value) : value_(value) {}
  /// Empty after a report. `count`, `index`: element of a vector of scalars in device memory.
  std::optional<double> value(const Access& access) const;
  bool on_device() const { return device_ != nullptr; }
  bool known_zero() const { return !device_ && value_ == 0; }

 private:
  const void* device_ = nullptr;
  cudaDataType type_ = CUDA_R_32F;
  double value_ = 0;
};

/// A matrix in device memory as it is stored: `lines` runs of `length` elements, `pitch` elements from one to the next
/// (columns, or rows when row_major).
struct Matrix {
  const void* data = nullptr;
  cudaDataType type = CUDA_R_32F;
  std::size_t rows = 0, columns = 0;
  std::ptrdiff_t pitch = 0;
  bool row_major = false;

  std::size_t lines() const { return row_major ? rows : columns; }
  std::size_t length() const { return row_major ? columns : rows; }
  /// From the first element to the end of the last.
  std::size_t bytes() const {
    if (rows == 0 || columns == 0) return 0;
    return ((lines() - 1) * static_cast<std::size_t>(pitch) + length()) * element_bytes(type);
  }
  /// The matrix or its transpose at a host address.
  View view(const void* host, bool transposed) const {
    const bool rows_apart = row_major != transposed;
    return {host, type, rows_apart ? pitch : 1, rows_apart ? 1 : pitch};
  }
  Matrix moved(std::ptrdiff_t elements) const {
    Matrix other = *this;
    other.data =
        static_cast<const std::byte*>(data) + elements * static_cast<std::ptrdiff_t>(element_bytes(type));
    return other;
  }
};

/// Host address of a matrix, or nullptr after a report.
void* host(const Access& access, const Matrix& matrix);
/// Records that the elements, and nothing between the lines, are read or written.
void touch(const Access& access, const Matrix& matrix, bool write);

/// Tells the timeline what the operation multiplies: on tensor cores unless inputs are f32 or f64 as they are.
void count_products(std::span<const Product> products, InputRounding rounding);

/// How inputs are rounded and of which type alpha and beta are.
struct Compute {
  cudaDataType scale = CUDA_R_32F;
  InputRounding rounding = InputRounding::none;
};
/// Empty for combinations of types that cuBLAS does not support.
std::optional<Compute> compute_of(cublasComputeType_t type, cudaDataType a, cudaDataType b, cudaDataType c);
/// refuse() for what compute_of does not take.
cublasStatus_t refuse_types(cublasComputeType_t type, cudaDataType a, cudaDataType b, cudaDataType c);

/// "CUBLAS_STATUS_SUCCESS" and a sentence.
const char* status_name(cublasStatus_t status);
const char* status_string(cublasStatus_t status);

}  // namespace emulator::blas
