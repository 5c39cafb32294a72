#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "blas/refuse.h"

/// Copies between host and device: vectors with increments, matrices with leading dimensions.
namespace {

cublasStatus_t status_of(cudaError_t error) {
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_MAPPING_ERROR;
}

/// `count` runs of `width` elements, `from_pitch` and `to_pitch` elements apart.
cublasStatus_t copy(std::int64_t count, std::int64_t width, std::int64_t element, const void* from,
                    std::int64_t from_pitch, void* to, std::int64_t to_pitch, cudaMemcpyKind kind, bool wait,
                    cudaStream_t stream) {
  if (count < 0 || width < 0 || element <= 0 || from_pitch < 1 || to_pitch < 1 || from_pitch < width ||
      to_pitch < width)
    return emulator::blas::invalid(
        "copy of a vector or matrix: a size below 0, or a leading dimension too small");
  if (count == 0 || width == 0) return CUBLAS_STATUS_SUCCESS;
  const auto bytes = [&](std::int64_t elements) { return static_cast<std::size_t>(elements * element); };
  const auto lines = static_cast<std::size_t>(count);
  return status_of(wait
                       ? cudaMemcpy2D(to, bytes(to_pitch), from, bytes(from_pitch), bytes(width), lines, kind)
                       : cudaMemcpy2DAsync(to, bytes(to_pitch), from, bytes(from_pitch), bytes(width), lines,
                                           kind, stream));
}

}  // namespace

#define EMULATOR_COPY(NAME, KIND, SUFFIX, Int)                                                            \
  cublasStatus_t cublas##NAME##Vector##SUFFIX(Int n, Int element, const void* x, Int incx, void* y,       \
                                              Int incy) {                                                 \
    return copy(n, 1, element, x, incx, y, incy, KIND, true, nullptr);                                    \
  }                                                                                                       \
  cublasStatus_t cublas##NAME##VectorAsync##SUFFIX(Int n, Int element, const void* x, Int incx, void* y,  \
                                                   Int incy, cudaStream_t stream) {                       \
    return copy(n, 1, element, x, incx, y, incy, KIND, false, stream);                                    \
  }                                                                                                       \
  cublasStatus_t cublas##NAME##Matrix##SUFFIX(Int rows, Int columns, Int element, const void* a, Int lda, \
                                              void* b, Int ldb) {                                         \
    return copy(columns, rows, element, a, lda, b, ldb, KIND, true, nullptr);                             \
  }                                                                                                       \
  cublasStatus_t cublas##NAME##MatrixAsync##SUFFIX(Int rows, Int columns, Int element, const void* a,     \
                                                   Int lda, void* b, Int ldb, cudaStream_t stream) {      \
    return copy(columns, rows, element, a, lda, b, ldb, KIND, false, stream);                             \
  }

extern "C" {
EMULATOR_COPY(Set, cudaMemcpyHostToDevice, , int)
EMULATOR_COPY(Set, cudaMemcpyHostToDevice, _64, std::int64_t)
EMULATOR_COPY(Get, cudaMemcpyDeviceToHost, , int)
EMULATOR_COPY(Get, cudaMemcpyDeviceToHost, _64, std::int64_t)
}
