#include "blas/cublas_gemm.h"

#include <algorithm>

/// C = alpha op(A) op(B) + beta C in all its forms. `Int` is int, or int64_t for the names that end in _64.
namespace emulator::blas {
namespace {

/// Everything about a product but its sizes.
struct Types {
  cudaDataType a, b, c;
  Compute compute;
};

/// Checks sizes and leading dimensions.
cublasStatus_t describe(cublasOperation_t transa, cublasOperation_t transb, std::int64_t m, std::int64_t n,
                        std::int64_t k, std::int64_t lda, std::int64_t ldb, std::int64_t ldc,
                        const Types& types, Gemm& gemm) {
  if (!is_operation(transa) || !is_operation(transb) || m < 0 || n < 0 || k < 0)
    return invalid("product: unknown operation, or m, n or k below 0");
  gemm.transpose_a = transa != CUBLAS_OP_N;
  gemm.transpose_b = transb != CUBLAS_OP_N;
  const std::int64_t rows_a = gemm.transpose_a ? k : m, rows_b = gemm.transpose_b ? n : k;
  const auto short_of = [](std::int64_t ld, std::int64_t rows) {
    return ld < std::max<std::int64_t>(1, rows);
  };
  if (short_of(lda, rows_a) || short_of(ldb, rows_b) || short_of(ldc, m))
    return invalid("product: lda, ldb or ldc is less than the rows of its matrix");
  const auto size = [](std::int64_t x) { return static_cast<std::size_t>(x); };
  gemm.m = size(m);
  gemm.n = size(n);
  gemm.k = size(k);
  gemm.a = {nullptr, types.a, size(rows_a), size(m + k - rows_a), lda, false};
  gemm.b = {nullptr, types.b, size(rows_b), size(n + k - rows_b), ldb, false};
  gemm.c = {nullptr, types.c, gemm.m, gemm.n, ldc, false};
  return CUBLAS_STATUS_SUCCESS;
}

/// `count` products a, b, c that lie a stride (elements) apart.
template <class Int>
cublasStatus_t strided(cublasHandle_t handle, const char* what, const std::optional<Compute>& compute,
                       cublasOperation_t transa, cublasOperation_t transb, Int m, Int n, Int k,
                       const void* alpha, const void* a, cudaDataType type_a, Int lda, long long stride_a,
                       const void* b, cudaDataType type_b, Int ldb, long long stride_b, const void* beta,
                       void* c, cudaDataType type_c, Int ldc, long long stride_c, Int count) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!compute) return CUBLAS_STATUS_NOT_SUPPORTED;  // ex_compute has said why
  if (count < 0) return invalid("product: batch count below 0");
  Gemm gemm;
  const cublasStatus_t status =
      describe(transa, transb, m, n, k, lda, ldb, ldc, {type_a, type_b, type_c, *compute}, gemm);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (m == 0 || n == 0 || count == 0) return CUBLAS_STATUS_SUCCESS;
  if (!alpha || !beta) return invalid("product: alpha or beta is null");
  gemm.alpha = handle->scalar(alpha, compute->scale);
  gemm.beta = handle->scalar(beta, compute->scale);
  gemm.a.data = a;
  gemm.b.data = b;
  gemm.c.data = c;
  std::vector<Gemm> gemms;
  for (Int i = 0; i < count; ++i) {
    gemms.push_back(gemm);
    gemms.back().a = gemm.a.moved(i * stride_a);
    gemms.back().b = gemm.b.moved(i * stride_b);
    gemms.back().c = gemm.c.moved(i * stride_c);
  }
  return enqueue_gemms(handle, what, std::move(gemms), *compute);
}

template <class Int>
cublasStatus_t batched(cublasHandle_t handle, const char* what, const std::optional<Compute>& compute,
                       cublasOperation_t transa, cublasOperation_t transb, Int m, Int n, Int k,
                       const void* alpha, const void* const* a, cudaDataType type_a, Int lda,
                       const void* const* b, cudaDataType type_b, Int ldb, const void* beta,
                       const void* const* c, cudaDataType type_c, Int ldc, Int count) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!compute) return CUBLAS_STATUS_NOT_SUPPORTED;  // ex_compute has said why
  if (count < 0) return invalid("product: batch count below 0");
  Gemm gemm;
  const cublasStatus_t status =
      describe(transa, transb, m, n, k, lda, ldb, ldc, {type_a, type_b, type_c, *compute}, gemm);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (m == 0 || n == 0 || count == 0) return CUBLAS_STATUS_SUCCESS;
  if (!alpha || !beta) return invalid("product: alpha or beta is null");
  gemm.alpha = handle->scalar(alpha, compute->scale);
  gemm.beta = handle->scalar(beta, compute->scale);
  return enqueue_gemms(handle, what, std::vector<Gemm>(static_cast<std::size_t>(count), gemm), *compute, a, b,
                       c);
}

template <class Int>
cublasStatus_t grouped(cublasHandle_t handle, const char* what, const std::optional<Compute>& compute,
                       const cublasOperation_t* transa, const cublasOperation_t* transb, const Int* m,
                       const Int* n, const Int* k, const void* alpha, const void* const* a,
                       cudaDataType type_a, const Int* lda, const void* const* b, cudaDataType type_b,
                       const Int* ldb, const void* beta, const void* const* c, cudaDataType type_c,
                       const Int* ldc, Int group_count, const Int* group_size) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!compute) return CUBLAS_STATUS_NOT_SUPPORTED;  // ex_compute has said why
  if (group_count < 0) return invalid("product: group count below 0");
  const std::size_t scalar_bytes = element_bytes(compute->scale);
  std::vector<Gemm> gemms;
  for (Int g = 0; g < group_count; ++g) {
    Gemm gemm;
    if (group_size[g] < 0) return invalid("product: group size below 0");
    const cublasStatus_t status = describe(transa[g], transb[g], m[g], n[g], k[g], lda[g], ldb[g], ldc[g],
                                           {type_a, type_b, type_c, *compute}, gemm);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    const auto at = [&](const void* scalars) {
      return static_cast<const std::byte*>(scalars) + static_cast<std::size_t>(g) * scalar_bytes;
    };
    gemm.alpha = Scalar(at(alpha), compute->scale, false);
    gemm.beta = Scalar(at(beta), compute->scale, false);
    gemms.insert(gemms.end(), static_cast<std::size_t>(group_size[g]), gemm);
  }
  if (gemms.empty()) return CUBLAS_STATUS_SUCCESS;
  return enqueue_gemms(handle, what, std::move(gemms), *compute, a, b, c);
}

/// The compute type of the Ex calls: the handle's math mode may allow tf32 for plain f32.
std::optional<Compute> ex_compute(cublasHandle_t handle, cublasComputeType_t type, cudaDataType a,
                                  cudaDataType b, cudaDataType c) {
  std::optional<Compute> compute = compute_of(type, a, b, c);
  if (!compute) refuse_types(type, a, b, c);
  if (compute && handle && type == CUBLAS_COMPUTE_32F && a == CUDA_R_32F) {
    compute->rounding = plain_compute<float>(handle)->rounding;
  }
  return compute;
}

}  // namespace
}  // namespace emulator::blas

using emulator::blas::data_type;
using emulator::blas::ex_compute;
using emulator::blas::plain_compute;

namespace {

template <class T>
const void* const* pointers(T* const array[]) {
  return reinterpret_cast<const void* const*>(array);
}

}  // namespace

#define EMULATOR_GEMM(T, X, V2, SUFFIX, Int)                                                                 \
  cublasStatus_t cublas##X##gemm##V2##SUFFIX(                                                                \
      cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, Int m, Int n, Int k,                \
      const T* alpha, const T* a, Int lda, const T* b, Int ldb, const T* beta, T* c, Int ldc) {              \
    return emulator::blas::strided<Int>(handle, "cublas" #X "gemm", plain_compute<T>(handle), ta, tb, m, n,  \
                                        k, alpha, a, data_type<T>, lda, 0, b, data_type<T>, ldb, 0, beta, c, \
                                        data_type<T>, ldc, 0, 1);                                            \
  }                                                                                                          \
  cublasStatus_t cublas##X##gemmStridedBatched##SUFFIX(                                                      \
      cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, Int m, Int n, Int k,                \
      const T* alpha, const T* a, Int lda, long long stride_a, const T* b, Int ldb, long long stride_b,      \
      const T* beta, T* c, Int ldc, long long stride_c, Int count) {                                         \
    return emulator::blas::strided<Int>(handle, "cublas" #X "gemmStridedBatched", plain_compute<T>(handle),  \
                                        ta, tb, m, n, k, alpha, a, data_type<T>, lda, stride_a, b,           \
                                        data_type<T>, ldb, stride_b, beta, c, data_type<T>, ldc, stride_c,   \
                                        count);                                                              \
  }                                                                                                          \
  cublasStatus_t cublas##X##gemmBatched##SUFFIX(cublasHandle_t handle, cublasOperation_t ta,                 \
                                                cublasOperation_t tb, Int m, Int n, Int k, const T* alpha,   \
                                                const T* const a[], Int lda, const T* const b[], Int ldb,    \
                                                const T* beta, T* const c[], Int ldc, Int count) {           \
    return emulator::blas::batched<Int>(handle, "cublas" #X "gemmBatched", plain_compute<T>(handle), ta, tb, \
                                        m, n, k, alpha, pointers(a), data_type<T>, lda, pointers(b),         \
                                        data_type<T>, ldb, beta, pointers(c), data_type<T>, ldc, count);     \
  }

#define EMULATOR_GEMM_GROUPED(T, X, SUFFIX, Int)                                                             \
  cublasStatus_t cublas##X##gemmGroupedBatched##SUFFIX(                                                      \
      cublasHandle_t handle, const cublasOperation_t ta[], const cublasOperation_t tb[], const Int m[],      \
      const Int n[], const Int k[], const T alpha[], const T* const a[], const Int lda[],                    \
      const T* const b[], const Int ldb[], const T beta[], T* const c[], const Int ldc[], Int groups,        \
      const Int sizes[]) {                                                                                   \
    return emulator::blas::grouped<Int>(handle, "cublas" #X "gemmGroupedBatched", plain_compute<T>(handle),  \
                                        ta, tb, m, n, k, alpha, pointers(a), data_type<T>, lda, pointers(b), \
                                        data_type<T>, ldb, beta, pointers(c), data_type<T>, ldc, groups,     \
                                        sizes);                                                              \
  }

#define EMULATOR_GEMM_EX(SUFFIX, Int)                                                                        \
  cublasStatus_t cublasGemmEx##SUFFIX(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb,     \
                                      Int m, Int n, Int k, const void* alpha, const void* a,                 \
                                      cudaDataType type_a, Int lda, const void* b, cudaDataType type_b,      \
                                      Int ldb, const void* beta, void* c, cudaDataType type_c, Int ldc,      \
                                      cublasComputeType_t compute, cublasGemmAlgo_t) {                       \
    return emulator::blas::strided<Int>(                                                                     \
        handle, "cublasGemmEx", ex_compute(handle, compute, type_a, type_b, type_c), ta, tb, m, n, k, alpha, \
        a, type_a, lda, 0, b, type_b, ldb, 0, beta, c, type_c, ldc, 0, 1);                                   \
  }                                                                                                          \
  cublasStatus_t cublasSgemmEx##SUFFIX(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb,    \
                                       Int m, Int n, Int k, const float* alpha, const void* a,               \
                                       cudaDataType type_a, Int lda, const void* b, cudaDataType type_b,     \
                                       Int ldb, const float* beta, void* c, cudaDataType type_c, Int ldc) {  \
    return emulator::blas::strided<Int>(                                                                     \
        handle, "cublasSgemmEx", ex_compute(handle, CUBLAS_COMPUTE_32F, type_a, type_b, type_c), ta, tb, m,  \
        n, k, alpha, a, type_a, lda, 0, b, type_b, ldb, 0, beta, c, type_c, ldc, 0, 1);                      \
  }                                                                                                          \
  cublasStatus_t cublasGemmStridedBatchedEx##SUFFIX(                                                         \
      cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, Int m, Int n, Int k,                \
      const void* alpha, const void* a, cudaDataType type_a, Int lda, long long stride_a, const void* b,     \
      cudaDataType type_b, Int ldb, long long stride_b, const void* beta, void* c, cudaDataType type_c,      \
      Int ldc, long long stride_c, Int count, cublasComputeType_t compute, cublasGemmAlgo_t) {               \
    return emulator::blas::strided<Int>(handle, "cublasGemmStridedBatchedEx",                                \
                                        ex_compute(handle, compute, type_a, type_b, type_c), ta, tb, m, n,   \
                                        k, alpha, a, type_a, lda, stride_a, b, type_b, ldb, stride_b, beta,  \
                                        c, type_c, ldc, stride_c, count);                                    \
  }                                                                                                          \
  cublasStatus_t cublasGemmBatchedEx##SUFFIX(                                                                \
      cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, Int m, Int n, Int k,                \
      const void* alpha, const void* const a[], cudaDataType type_a, Int lda, const void* const b[],         \
      cudaDataType type_b, Int ldb, const void* beta, void* const c[], cudaDataType type_c, Int ldc,         \
      Int count, cublasComputeType_t compute, cublasGemmAlgo_t) {                                            \
    return emulator::blas::batched<Int>(                                                                     \
        handle, "cublasGemmBatchedEx", ex_compute(handle, compute, type_a, type_b, type_c), ta, tb, m, n, k, \
        alpha, a, type_a, lda, b, type_b, ldb, beta, c, type_c, ldc, count);                                 \
  }                                                                                                          \
  cublasStatus_t cublasGemmGroupedBatchedEx##SUFFIX(                                                         \
      cublasHandle_t handle, const cublasOperation_t ta[], const cublasOperation_t tb[], const Int m[],      \
      const Int n[], const Int k[], const void* alpha, const void* const a[], cudaDataType type_a,           \
      const Int lda[], const void* const b[], cudaDataType type_b, const Int ldb[], const void* beta,        \
      void* const c[], cudaDataType type_c, const Int ldc[], Int groups, const Int sizes[],                  \
      cublasComputeType_t compute) {                                                                         \
    return emulator::blas::grouped<Int>(                                                                     \
        handle, "cublasGemmGroupedBatchedEx", ex_compute(handle, compute, type_a, type_b, type_c), ta, tb,   \
        m, n, k, alpha, a, type_a, lda, b, type_b, ldb, beta, c, type_c, ldc, groups, sizes);                \
  }

extern "C" {
EMULATOR_GEMM(float, S, _v2, , int)
EMULATOR_GEMM(float, S, _v2, _64, std::int64_t)
EMULATOR_GEMM(double, D, _v2, , int)
EMULATOR_GEMM(double, D, _v2, _64, std::int64_t)
EMULATOR_GEMM(__half, H, , , int)
EMULATOR_GEMM(__half, H, , _64, std::int64_t)
EMULATOR_GEMM_GROUPED(float, S, , int)
EMULATOR_GEMM_GROUPED(float, S, _64, std::int64_t)
EMULATOR_GEMM_GROUPED(double, D, , int)
EMULATOR_GEMM_GROUPED(double, D, _64, std::int64_t)
EMULATOR_GEMM_EX(, int)
EMULATOR_GEMM_EX(_64, std::int64_t)
}
