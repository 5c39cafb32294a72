#pragma once
#include <cublas_v2.h>

#include <cstdio>
#include <mutex>
#include <set>
#include <string>

namespace emulator::blas {

/// Says on standard error why a call is refused, once for each reason. Returns the status.
inline cublasStatus_t refuse(cublasStatus_t status, const std::string& reason) {
  static std::mutex mutex;
  static std::set<std::string>& said = *new std::set<std::string>;  // calls may come while the process ends
  const std::lock_guard lock(mutex);
  if (said.insert(reason).second)
    std::fprintf(
        stderr, "cuda_emulator: note: %s: %s\n",
        status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_INVALID_VALUE",
        reason.c_str());
  return status;
}
inline cublasStatus_t not_supported(const std::string& reason) {
  return refuse(CUBLAS_STATUS_NOT_SUPPORTED, reason);
}
inline cublasStatus_t invalid(const std::string& reason) {
  return refuse(CUBLAS_STATUS_INVALID_VALUE, reason);
}

}  // namespace emulator::blas
