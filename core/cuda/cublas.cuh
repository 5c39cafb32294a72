#pragma once
#include <cublasLt.h>

#include <source_location>

/// cuBLASLt, which forms the products of matrices. Its library has half a gigabyte and is loaded with the
/// first product.
namespace nemocube::cuda {

struct CublasLt {
  decltype(&::cublasLtCreate) create = nullptr;
  decltype(&::cublasLtGetStatusString) status_string = nullptr;
  decltype(&::cublasLtMatrixLayoutInit_internal) layout_init = nullptr;
  decltype(&::cublasLtMatmulDescInit_internal) product_init = nullptr;
  decltype(&::cublasLtMatmulDescSetAttribute) product_set = nullptr;
  decltype(&::cublasLtMatmulPreferenceInit_internal) preference_init = nullptr;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&::cublasLtMatmul) matmul = nullptr;
  cublasLtHandle_t handle = nullptr;  ///< one for all streams and threads
};

/// Throws Error that says why where the library cannot be loaded.
const CublasLt& cublas();

/// Throws Error that names the call and cuBLAS's words for the status, unless it is success.
void check(cublasStatus_t status, const char* call,
           std::source_location where = std::source_location::current());
#define NEMOCUBE_CUBLAS(call) ::nemocube::cuda::check((call), #call)

}  // namespace nemocube::cuda
