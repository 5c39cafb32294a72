#include "core/cuda/cublas.cuh"

#include <dlfcn.h>

#include <string>

#include "core/cuda/device.cuh"

namespace nemocube::cuda {
namespace {

template <class Pointer>
void find(void* library, const char* name, Pointer& function) {
  function = reinterpret_cast<Pointer>(::dlsym(library, name));
  require(function, "cuBLAS cannot be used: ", ::dlerror());
}

CublasLt load() {
  const std::string file = cat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  // Never closed: products may run until the process ends.
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  require(library, "cuBLAS, which products of matrices on cuda need, cannot be loaded: ", ::dlerror());
  CublasLt lt;
  find(library, "cublasLtCreate", lt.create);
  find(library, "cublasLtGetStatusString", lt.status_string);
  find(library, "cublasLtMatrixLayoutInit_internal", lt.layout_init);
  find(library, "cublasLtMatmulDescInit_internal", lt.product_init);
  find(library, "cublasLtMatmulDescSetAttribute", lt.product_set);
  find(library, "cublasLtMatmulPreferenceInit_internal", lt.preference_init);
  find(library, "cublasLtMatmulPreferenceSetAttribute", lt.preference_set);
  find(library, "cublasLtMatmulAlgoGetHeuristic", lt.heuristic);
  find(library, "cublasLtMatmul", lt.matmul);
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
