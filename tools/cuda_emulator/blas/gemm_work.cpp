#include "blas/gemm_work.h"

namespace emulator::blas {

const void* Access::read(const void* pointer, std::size_t bytes) const {
  const void* const address = host(pointer, bytes);
  if (address) touch(pointer, bytes, false);
  return address;
}

void* Access::write(const void* pointer, std::size_t bytes) const {
  void* const address = host(pointer, bytes);
  if (address) touch(pointer, bytes, true);
  return address;
}

Scalar::Scalar(const void* pointer, cudaDataType type, bool on_device) : type_(type) {
  if (on_device) {
    device_ = pointer;
  } else {
    value_ = load(type, pointer);
  }
}

std::optional<double> Scalar::value(const Access& access) const {
  if (!device_) return value_;
  const void* const address = access.read(device_, element_bytes(type_));
  if (!address) return std::nullopt;
  return load(type_, address);
}

void* host(const Access& access, const Matrix& matrix) { return access.host(matrix.data, matrix.bytes()); }

void touch(const Access& access, const Matrix& matrix, bool write) {
  if (matrix.bytes() == 0) return;
  if (static_cast<std::size_t>(matrix.pitch) == matrix.length() || matrix.lines() == 1) {
    return access.touch(matrix.data, matrix.bytes(), write);
  }
  const std::size_t size = element_bytes(matrix.type);
  const auto* line = static_cast<const std::byte*>(matrix.data);
  for (std::size_t i = 0; i < matrix.lines(); ++i, line += static_cast<std::size_t>(matrix.pitch) * size) {
    access.touch(line, matrix.length() * size, write);
  }
}

void count_products(std::span<const Product> products, InputRounding rounding) {
  double on_tensor_cores = 0, off = 0;
  for (const Product& product : products) {
    const double multiply_adds =
        static_cast<double>(product.m) * static_cast<double>(product.n) * static_cast<double>(product.k);
    const bool plain =
        rounding == InputRounding::none && (product.a.type == CUDA_R_32F || product.a.type == CUDA_R_64F);
    (plain ? off : on_tensor_cores) += multiply_adds;
  }
  cuda_emulator_product(on_tensor_cores, off);
}

std::optional<Compute> compute_of(cublasComputeType_t type, cudaDataType a, cudaDataType b, cudaDataType c) {
  if (a != b) return std::nullopt;
  const bool all_f32 = a == CUDA_R_32F && c == CUDA_R_32F;
  const auto f32_with = [&](InputRounding rounding) -> std::optional<Compute> {
    if (!all_f32) return std::nullopt;
    return Compute{CUDA_R_32F, rounding};
  };
  switch (type) {
    case CUBLAS_COMPUTE_16F:
    case CUBLAS_COMPUTE_16F_PEDANTIC:
      if (a != CUDA_R_16F || c != CUDA_R_16F) return std::nullopt;
      return Compute{CUDA_R_16F, InputRounding::none};
    case CUBLAS_COMPUTE_32I:
    case CUBLAS_COMPUTE_32I_PEDANTIC:
      if (a != CUDA_R_8I || c != CUDA_R_32I) return std::nullopt;
      return Compute{CUDA_R_32I, InputRounding::none};
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC: {
      const bool halves = (a == CUDA_R_16F || a == CUDA_R_16BF) && (c == a || c == CUDA_R_32F);
      const bool bytes = a == CUDA_R_8I && c == CUDA_R_32F;
      if (!all_f32 && !halves && !bytes) return std::nullopt;
      return Compute{CUDA_R_32F, InputRounding::none};
    }
    case CUBLAS_COMPUTE_32F_EMULATED_16BFX9:
      return f32_with(InputRounding::none);
    case CUBLAS_COMPUTE_32F_FAST_TF32:
      return f32_with(InputRounding::tf32);
    case CUBLAS_COMPUTE_32F_FAST_16F:
      return f32_with(InputRounding::half);
    case CUBLAS_COMPUTE_32F_FAST_16BF:
      return f32_with(InputRounding::bfloat16);
    case CUBLAS_COMPUTE_64F:
    case CUBLAS_COMPUTE_64F_PEDANTIC:
    case CUBLAS_COMPUTE_64F_EMULATED_FIXEDPOINT:
      if (a != CUDA_R_64F || c != CUDA_R_64F) return std::nullopt;
      return Compute{CUDA_R_64F, InputRounding::none};
  }
  return std::nullopt;
}

namespace {

std::string name_of(cudaDataType type) {
  switch (type) {
    case CUDA_R_8I:
      return "R_8I";
    case CUDA_R_32I:
      return "R_32I";
    case CUDA_R_16F:
      return "R_16F";
    case CUDA_R_16BF:
      return "R_16BF";
    case CUDA_R_32F:
      return "R_32F";
    case CUDA_R_64F:
      return "R_64F";
    case CUDA_R_8F_E4M3:
      return "R_8F_E4M3";
    case CUDA_R_8F_E5M2:
      return "R_8F_E5M2";
    default:
      return "cudaDataType " + std::to_string(type);
  }
}

}  // namespace

cublasStatus_t refuse_types(cublasComputeType_t type, cudaDataType a, cudaDataType b, cudaDataType c) {
  return not_supported("product of A " + name_of(a) + " and B " + name_of(b) + " into " + name_of(c) +
                       " with cublasComputeType_t " + std::to_string(type));
}

const char* status_name(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR:
      return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_LICENSE_ERROR:
      return "CUBLAS_STATUS_LICENSE_ERROR";
  }
  return "unknown cublasStatus_t";
}

const char* status_string(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "the handle was not created";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "an allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an argument has an invalid value";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "the device lacks a feature that the call needs";
    case CUBLAS_STATUS_MAPPING_ERROR:
      return "device memory could not be accessed";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "the work could not be started on the device";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "an internal operation failed";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the combination of arguments is not supported";
    case CUBLAS_STATUS_LICENSE_ERROR:
      return "a license is missing";
  }
  return "unknown status";
}

}  // namespace emulator::blas
