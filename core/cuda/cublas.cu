#include "core/cuda/cublas.cuh"

#include <string>

#include "core/cuda/device.cuh"
#include "core/cuda/shared_library.cuh"

namespace nemocube::cuda {
namespace {

CublasLt load() {
  const SharedLibrary library(cat("libcublasLt.so.", CUBLAS_VER_MAJOR), "cuBLAS",
                              "which products of matrices on cuda need");
  CublasLt lt;
  library.find("cublasLtCreate", lt.create);
  library.find("cublasLtGetStatusString", lt.status_string);
  library.find("cublasLtMatrixLayoutInit_internal", lt.layout_init);
  library.find("cublasLtMatmulDescInit_internal", lt.product_init);
  library.find("cublasLtMatmulDescSetAttribute", lt.product_set);
  library.find("cublasLtMatmulPreferenceInit_internal", lt.preference_init);
  library.find("cublasLtMatmulPreferenceSetAttribute", lt.preference_set);
  library.find("cublasLtMatmulAlgoGetHeuristic", lt.heuristic);
  library.find("cublasLtMatmul", lt.matmul);
  stream();  // chooses the device, which the handle belongs to
  const cublasStatus_t status = lt.create(&lt.handle);
  require(status == CUBLAS_STATUS_SUCCESS,
          "cuBLAS cannot be used: cublasLtCreate: ", lt.status_string(status));
  return lt;
}

}  // namespace

const CublasLt& cublas() {
  static const CublasLt lt = load();
  return lt;
}

void check(cublasStatus_t status, const char* call, std::source_location where) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail("cuBLAS: ", call, ": ", cublas().status_string(status), " (", static_cast<int>(status), ", at ",
       where.file_name(), ":", where.line(), ")");
}

}  // namespace nemocube::cuda
