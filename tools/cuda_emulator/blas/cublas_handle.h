#pragma once
#include <cublas_v2.h>

#include "blas/gemm_work.h"

/// What cublasHandle_t points to. A handle is used by one thread at a time, as in cuBLAS.
struct cublasContext {
  cudaStream_t stream = nullptr;
  int device = 0;
  cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
  cublasMath_t math_mode = CUBLAS_DEFAULT_MATH;
  cublasAtomicsMode_t atomics_mode = CUBLAS_ATOMICS_NOT_ALLOWED;
  void* workspace = nullptr;  ///< the program's own; nullptr: the library's
  std::size_t workspace_bytes = 0;
  int sm_count_target = 0;

  bool scalars_on_device() const { return pointer_mode == CUBLAS_POINTER_MODE_DEVICE; }
  emulator::blas::Scalar scalar(const void* pointer, cudaDataType type) const {
    return {pointer, type, scalars_on_device()};
  }
};

namespace emulator::blas {

/// f32, f64 and f16 as C++ types of cuBLAS.
template <class T>
constexpr cudaDataType data_type = CUDA_R_32F;
template <>
inline constexpr cudaDataType data_type<double> = CUDA_R_64F;
template <>
inline constexpr cudaDataType data_type<__half> = CUDA_R_16F;

}  // namespace emulator::blas
