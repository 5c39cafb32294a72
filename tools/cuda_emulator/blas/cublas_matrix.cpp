#include <algorithm>

#include "blas/cublas_gemm.h"

/// Matrix times vector, outer products, sums of matrices, products with diagonal matrices.
namespace emulator::blas {
namespace {

std::size_t size(std::int64_t x) { return static_cast<std::size_t>(std::max<std::int64_t>(x, 0)); }

/// y = alpha op(A) x + beta y as a product with a matrix of one column, without its pointers.
template <class T>
cublasStatus_t describe_gemv(cublasHandle_t handle, cublasOperation_t transpose, std::int64_t m,
                             std::int64_t n, const T* alpha, std::int64_t lda, std::int64_t incx,
                             const T* beta, std::int64_t incy, Gemm& gemm) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!is_operation(transpose) || m < 0 || n < 0 || lda < std::max<std::int64_t>(1, m) || incx == 0 ||
      incy == 0)
    return invalid("gemv: unknown operation, m or n below 0, lda less than m, or an increment of 0");
  if (incx < 0 || incy < 0) return not_supported("gemv, ger: an increment below 0");
  gemm.transpose_a = transpose != CUBLAS_OP_N;
  gemm.m = size(gemm.transpose_a ? n : m);
  gemm.n = 1;
  gemm.k = size(gemm.transpose_a ? m : n);
  gemm.a = {nullptr, data_type<T>, size(m), size(n), lda, false};
  gemm.b = {nullptr, data_type<T>, gemm.k, 1, incx, true};
  gemm.c = {nullptr, data_type<T>, gemm.m, 1, incy, true};
  if (gemm.m == 0) return CUBLAS_STATUS_SUCCESS;
  if (!alpha || !beta) return invalid("gemv, geam: alpha or beta is null");
  gemm.alpha = handle->scalar(alpha, data_type<T>);
  gemm.beta = handle->scalar(beta, data_type<T>);
  return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t gemv(cublasHandle_t handle, const char* what, cublasOperation_t transpose, std::int64_t m,
                    std::int64_t n, const T* alpha, const T* a, std::int64_t lda, std::int64_t stride_a,
                    const T* x, std::int64_t incx, std::int64_t stride_x, const T* beta, T* y,
                    std::int64_t incy, std::int64_t stride_y, std::int64_t count) {
  Gemm gemm;
  const cublasStatus_t status = describe_gemv(handle, transpose, m, n, alpha, lda, incx, beta, incy, gemm);
  if (status != CUBLAS_STATUS_SUCCESS || gemm.m == 0 || count <= 0) return status;
  std::vector<Gemm> gemms;
  for (std::int64_t i = 0; i < count; ++i) {
    gemms.push_back(gemm);
    gemms.back().a.data = a + i * stride_a;
    gemms.back().b.data = x + i * stride_x;
    gemms.back().c.data = y + i * stride_y;
  }
  return enqueue_gemms(handle, what, std::move(gemms), {data_type<T>, InputRounding::none});
}

template <class T>
cublasStatus_t gemv_batched(cublasHandle_t handle, const char* what, cublasOperation_t transpose,
                            std::int64_t m, std::int64_t n, const T* alpha, const T* const a[],
                            std::int64_t lda, const T* const x[], std::int64_t incx, const T* beta,
                            T* const y[], std::int64_t incy, std::int64_t count) {
  Gemm gemm;
  const cublasStatus_t status = describe_gemv(handle, transpose, m, n, alpha, lda, incx, beta, incy, gemm);
  if (status != CUBLAS_STATUS_SUCCESS || gemm.m == 0 || count <= 0) return status;
  const auto array = [](auto pointers) { return reinterpret_cast<const void* const*>(pointers); };
  return enqueue_gemms(handle, what, std::vector<Gemm>(size(count), gemm),
                       {data_type<T>, InputRounding::none}, array(a), array(x), array(y));
}

/// A = alpha x y^T + A: a product of depth 1.
template <class T>
cublasStatus_t ger(cublasHandle_t handle, const char* what, std::int64_t m, std::int64_t n, const T* alpha,
                   const T* x, std::int64_t incx, const T* y, std::int64_t incy, T* a, std::int64_t lda) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (m < 0 || n < 0 || incx == 0 || incy == 0 || lda < std::max<std::int64_t>(1, m))
    return invalid("ger: m or n below 0, lda less than m, or an increment of 0");
  if (incx < 0 || incy < 0) return not_supported("gemv, ger: an increment below 0");
  if (m == 0 || n == 0) return CUBLAS_STATUS_SUCCESS;
  Gemm gemm;
  gemm.m = size(m);
  gemm.n = size(n);
  gemm.k = 1;
  gemm.a = {x, data_type<T>, gemm.m, 1, incx, true};
  gemm.b = {y, data_type<T>, gemm.n, 1, incy, true};
  gemm.transpose_b = true;
  gemm.c = {a, data_type<T>, gemm.m, gemm.n, lda, false};
  gemm.alpha = handle->scalar(alpha, data_type<T>);
  gemm.beta = Scalar(1.0);
  return enqueue_gemms(handle, what, {gemm}, {data_type<T>, InputRounding::none});
}

/// C = alpha op(A) + beta op(B). C may be A or B where that is not transposed.
template <class T>
cublasStatus_t geam(cublasHandle_t handle, const char* what, cublasOperation_t transa,
                    cublasOperation_t transb, std::int64_t m, std::int64_t n, const T* alpha, const T* a,
                    std::int64_t lda, const T* beta, const T* b, std::int64_t ldb, T* c, std::int64_t ldc) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  const bool ta = transa != CUBLAS_OP_N, tb = transb != CUBLAS_OP_N;
  const auto least = [](std::int64_t rows) { return std::max<std::int64_t>(1, rows); };
  if (!is_operation(transa) || !is_operation(transb) || m < 0 || n < 0 || lda < least(ta ? n : m) ||
      ldb < least(tb ? n : m) || ldc < least(m) || (c == a && ta) || (c == b && tb))
    return invalid(
        "geam: unknown operation, m or n below 0, a leading dimension too small, or C is a transposed input");
  if (m == 0 || n == 0) return CUBLAS_STATUS_SUCCESS;
  if (!alpha || !beta) return invalid("gemv, geam: alpha or beta is null");
  const cudaDataType type = data_type<T>;
  const Scalar alpha_scalar = handle->scalar(alpha, type), beta_scalar = handle->scalar(beta, type);
  const Matrix in_a{a, type, size(ta ? n : m), size(ta ? m : n), lda, false},
      in_b{b, type, size(tb ? n : m), size(tb ? m : n), ldb, false},
      out{c, type, size(m), size(n), ldc, false};
  return enqueue(handle->stream, what, [=](unsigned operation) {
    const Access access{operation, what};
    const std::optional<double> scale_a = alpha_scalar.value(access), scale_b = beta_scalar.value(access);
    if (!scale_a || !scale_b) return false;
    // A matrix whose factor is 0 is not read.
    const auto input = [&](const Matrix& matrix, double scale) -> const T* {
      if (scale == 0) return nullptr;
      const auto* const data = static_cast<const T*>(host(access, matrix));
      if (data) touch(access, matrix, false);
      return data;
    };
    const T *const from_a = input(in_a, *scale_a), *const from_b = input(in_b, *scale_b);
    auto* const to = static_cast<T*>(host(access, out));
    if (!to || (*scale_a != 0 && !from_a) || (*scale_b != 0 && !from_b)) return false;
    touch(access, out, true);
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t i = 0; i < m; ++i) {
        double value = 0;
        if (from_a) value = *scale_a * from_a[ta ? j + i * lda : i + j * lda];
        if (from_b) value += *scale_b * from_b[tb ? j + i * ldb : i + j * ldb];
        to[i + j * ldc] = static_cast<T>(value);
      }
    }
    return true;
  });
}

/// C = diag(x) A (left) or A diag(x). C may be A.
template <class T>
cublasStatus_t dgmm(cublasHandle_t handle, const char* what, cublasSideMode_t side, std::int64_t m,
                    std::int64_t n, const T* a, std::int64_t lda, const T* x, std::int64_t incx, T* c,
                    std::int64_t ldc) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  const std::int64_t least = std::max<std::int64_t>(1, m);
  if (m < 0 || n < 0 || lda < least || ldc < least)
    return invalid("dgmm: m or n below 0, or lda or ldc less than m");
  if (incx <= 0) return not_supported("dgmm: an increment of 0 or below");
  if (m == 0 || n == 0) return CUBLAS_STATUS_SUCCESS;
  const bool left = side == CUBLAS_SIDE_LEFT;
  const Matrix in{a, data_type<T>, size(m), size(n), lda, false},
      diagonal{x, data_type<T>, size(left ? m : n), 1, incx, true},
      out{c, data_type<T>, size(m), size(n), ldc, false};
  return enqueue(handle->stream, what, [=](unsigned operation) {
    const Access access{operation, what};
    const auto* const from = static_cast<const T*>(host(access, in));
    const auto* const factors = static_cast<const T*>(host(access, diagonal));
    auto* const to = static_cast<T*>(host(access, out));
    if (!from || !factors || !to) return false;
    touch(access, in, false);
    touch(access, diagonal, false);
    touch(access, out, true);
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t i = 0; i < m; ++i)
        to[i + j * ldc] = from[i + j * lda] * factors[(left ? i : j) * incx];
    }
    return true;
  });
}

}  // namespace
}  // namespace emulator::blas

#define EMULATOR_MATRIX(T, X, SUFFIX, Int)                                                                   \
  cublasStatus_t cublas##X##gemv_v2##SUFFIX(cublasHandle_t handle, cublasOperation_t trans, Int m, Int n,    \
                                            const T* alpha, const T* a, Int lda, const T* x, Int incx,       \
                                            const T* beta, T* y, Int incy) {                                 \
    return emulator::blas::gemv<T>(handle, "cublas" #X "gemv", trans, m, n, alpha, a, lda, 0, x, incx, 0,    \
                                   beta, y, incy, 0, 1);                                                     \
  }                                                                                                          \
  cublasStatus_t cublas##X##gemvStridedBatched##SUFFIX(                                                      \
      cublasHandle_t handle, cublasOperation_t trans, Int m, Int n, const T* alpha, const T* a, Int lda,     \
      long long stride_a, const T* x, Int incx, long long stride_x, const T* beta, T* y, Int incy,           \
      long long stride_y, Int count) {                                                                       \
    return emulator::blas::gemv<T>(handle, "cublas" #X "gemvStridedBatched", trans, m, n, alpha, a, lda,     \
                                   stride_a, x, incx, stride_x, beta, y, incy, stride_y, count);             \
  }                                                                                                          \
  cublasStatus_t cublas##X##gemvBatched##SUFFIX(                                                             \
      cublasHandle_t handle, cublasOperation_t trans, Int m, Int n, const T* alpha, const T* const a[],      \
      Int lda, const T* const x[], Int incx, const T* beta, T* const y[], Int incy, Int count) {             \
    return emulator::blas::gemv_batched<T>(handle, "cublas" #X "gemvBatched", trans, m, n, alpha, a, lda, x, \
                                           incx, beta, y, incy, count);                                      \
  }                                                                                                          \
  cublasStatus_t cublas##X##ger_v2##SUFFIX(cublasHandle_t handle, Int m, Int n, const T* alpha, const T* x,  \
                                           Int incx, const T* y, Int incy, T* a, Int lda) {                  \
    return emulator::blas::ger<T>(handle, "cublas" #X "ger", m, n, alpha, x, incx, y, incy, a, lda);         \
  }                                                                                                          \
  cublasStatus_t cublas##X##geam##SUFFIX(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb,  \
                                         Int m, Int n, const T* alpha, const T* a, Int lda, const T* beta,   \
                                         const T* b, Int ldb, T* c, Int ldc) {                               \
    return emulator::blas::geam<T>(handle, "cublas" #X "geam", ta, tb, m, n, alpha, a, lda, beta, b, ldb, c, \
                                   ldc);                                                                     \
  }                                                                                                          \
  cublasStatus_t cublas##X##dgmm##SUFFIX(cublasHandle_t handle, cublasSideMode_t side, Int m, Int n,         \
                                         const T* a, Int lda, const T* x, Int incx, T* c, Int ldc) {         \
    return emulator::blas::dgmm<T>(handle, "cublas" #X "dgmm", side, m, n, a, lda, x, incx, c, ldc);         \
  }

extern "C" {
EMULATOR_MATRIX(float, S, , int)
EMULATOR_MATRIX(float, S, _64, std::int64_t)
EMULATOR_MATRIX(double, D, , int)
EMULATOR_MATRIX(double, D, _64, std::int64_t)
}
