#pragma once
#include <span>
#include <vector>

#include "blas/cublas_handle.h"

namespace emulator::blas {

/// C = alpha op(A) op(B) + beta C. A vector x with a positive increment is a matrix of one column, stored by rows `increment` apart.
/// The pointers in a, b, c are filled in when the work runs if they come from an array in device memory.
struct Gemm {
  Matrix a, b, c;
  bool transpose_a = false, transpose_b = false;
  std::size_t m = 0, n = 0, k = 0;
  Scalar alpha, beta;
};

inline bool is_operation(cublasOperation_t operation) {
  return operation == CUBLAS_OP_N || operation == CUBLAS_OP_T || operation == CUBLAS_OP_C;
}

/// What cublasSgemm and its kin compute with, by the handle's math mode.
template <class T>
std::optional<Compute> plain_compute(cublasHandle_t handle) {
  Compute compute{data_type<T>, InputRounding::none};
  if (handle && data_type<T> == CUDA_R_32F) {
    const int mode = handle->math_mode & 15;
    if (mode == CUBLAS_TF32_TENSOR_OP_MATH) compute.rounding = InputRounding::tf32;
    if (mode == CUBLAS_TENSOR_OP_MATH) compute.rounding = InputRounding::half;
  }
  return compute;
}

/// Puts the products into the handle's stream.
cublasStatus_t enqueue_gemms(cublasHandle_t handle, const char* what, std::vector<Gemm> gemms,
                             const Compute& compute);

/// Products whose pointers lie in arrays in device memory, one element for each of `gemms`.
cublasStatus_t enqueue_gemms(cublasHandle_t handle, const char* what, std::vector<Gemm> gemms,
                             const Compute& compute, const void* const* a, const void* const* b,
                             const void* const* c);

}  // namespace emulator::blas
