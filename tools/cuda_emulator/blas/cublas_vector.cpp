#include <cmath>
#include <cstdlib>

#include "blas/cublas_handle.h"

/// Operations on vectors. Sums are chains of fused multiply-adds of doubles in the order of the elements, rounded once.
namespace emulator::blas {
namespace {

/// n elements `increment` apart; a negative increment begins at the end.
struct Vector {
  const void* data;
  cudaDataType type;
  std::int64_t n, increment;
};

/// The elements of a vector on the host.
class Elements {
 public:
  /// Empty (bool false) after a report. Reads come before writes.
  Elements(const Access& access, const Vector& vector, bool read, bool write)
      : type_(vector.type), step_(vector.increment) {
    if (vector.n <= 0) {
      valid_ = true;
      return;
    }
    const std::size_t bytes = element_bytes(type_);
    const auto apart = static_cast<std::size_t>(std::abs(step_)), count = static_cast<std::size_t>(vector.n);
    auto* const begin = static_cast<std::byte*>(access.host(vector.data, ((count - 1) * apart + 1) * bytes));
    if (!begin) return;
    valid_ = true;
    first_ = step_ < 0 ? begin + (count - 1) * apart * bytes : begin;
    const Matrix as_matrix{vector.data, type_, count, 1, static_cast<std::ptrdiff_t>(apart), true};
    if (read) touch(access, as_matrix, false);
    if (write) touch(access, as_matrix, true);
  }
  explicit operator bool() const { return valid_; }
  double operator[](std::int64_t i) const { return load(type_, first_, i * step_); }
  void set(std::int64_t i, double value) const { store(type_, first_, i * step_, value); }

 private:
  cudaDataType type_;
  std::int64_t step_;
  std::byte* first_ = nullptr;
  bool valid_ = false;
};

/// y = alpha x + y
cublasStatus_t axpy(cublasHandle_t handle, const char* what, const void* alpha, cudaDataType alpha_type,
                    Vector x, Vector y) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (x.n <= 0) return CUBLAS_STATUS_SUCCESS;
  if (!alpha) return invalid("axpy, scal: alpha is null");
  return enqueue(handle->stream, what, [=, scale = handle->scalar(alpha, alpha_type)](unsigned operation) {
    const Access access{operation, what};
    const std::optional<double> factor = scale.value(access);
    if (!factor) return false;
    if (*factor == 0) return true;
    const Elements from(access, x, true, false), to(access, y, true, true);
    if (!from || !to) return false;
    for (std::int64_t i = 0; i < x.n; ++i) to.set(i, std::fma(*factor, from[i], to[i]));
    return true;
  });
}

/// x = alpha x; 0 does not read x.
cublasStatus_t scal(cublasHandle_t handle, const char* what, const void* alpha, cudaDataType alpha_type,
                    Vector x) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (x.n <= 0 || x.increment <= 0) return CUBLAS_STATUS_SUCCESS;
  if (!alpha) return invalid("axpy, scal: alpha is null");
  return enqueue(handle->stream, what, [=, scale = handle->scalar(alpha, alpha_type)](unsigned operation) {
    const Access access{operation, what};
    const std::optional<double> factor = scale.value(access);
    if (!factor) return false;
    const Elements elements(access, x, *factor != 0, true);
    if (!elements) return false;
    for (std::int64_t i = 0; i < x.n; ++i) elements.set(i, *factor == 0 ? 0 : *factor * elements[i]);
    return true;
  });
}

enum class Transfer { copy, swap };

cublasStatus_t transfer(cublasHandle_t handle, const char* what, Transfer kind, Vector x, Vector y) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (x.n <= 0) return CUBLAS_STATUS_SUCCESS;
  return enqueue(handle->stream, what, [=](unsigned operation) {
    const Access access{operation, what};
    const bool swap = kind == Transfer::swap;
    const Elements left(access, x, true, swap), right(access, y, swap, true);
    if (!left || !right) return false;
    for (std::int64_t i = 0; i < x.n; ++i) {
      const double value = left[i];
      if (swap) left.set(i, right[i]);
      right.set(i, value);
    }
    return true;
  });
}

/// (x, y) = (c x + s y, c y - s x)
cublasStatus_t rot(cublasHandle_t handle, const char* what, Vector x, Vector y, const void* c, const void* s,
                   cudaDataType type) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (x.n <= 0) return CUBLAS_STATUS_SUCCESS;
  if (!c || !s) return invalid("rot: c or s is null");
  const Scalar cosine_scalar = handle->scalar(c, type), sine_scalar = handle->scalar(s, type);
  return enqueue(handle->stream, what, [=](unsigned operation) {
    const Access access{operation, what};
    const std::optional<double> cosine = cosine_scalar.value(access), sine = sine_scalar.value(access);
    if (!cosine || !sine) return false;
    const Elements left(access, x, true, true), right(access, y, true, true);
    if (!left || !right) return false;
    for (std::int64_t i = 0; i < x.n; ++i) {
      const double a = left[i], b = right[i];
      left.set(i, *cosine * a + *sine * b);
      right.set(i, *cosine * b - *sine * a);
    }
    return true;
  });
}

/// A number computed from vectors, written where the pointer mode says. A result on the host is there when the call returns.
template <class F>
cublasStatus_t reduce(cublasHandle_t handle, const char* what, void* result, cudaDataType type, F compute) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!result) return invalid("reduction: the result is null");
  const bool on_device = handle->scalars_on_device();
  const cublasStatus_t status = enqueue(handle->stream, what, [=](unsigned operation) {
    const Access access{operation, what};
    const std::optional<double> value = compute(access);
    void* const to = on_device ? access.write(result, element_bytes(type)) : result;
    if (!value || !to) return false;
    store(type, to, 0, *value);
    return true;
  });
  if (status != CUBLAS_STATUS_SUCCESS || on_device) return status;
  return cudaStreamSynchronize(handle->stream) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                              : CUBLAS_STATUS_EXECUTION_FAILED;
}

cublasStatus_t dot(cublasHandle_t handle, const char* what, Vector x, Vector y, void* result,
                   cudaDataType type) {
  return reduce(handle, what, result, type, [=](const Access& access) -> std::optional<double> {
    const Elements left(access, x, true, false), right(access, y, true, false);
    if (!left || !right) return std::nullopt;
    double sum = 0;
    for (std::int64_t i = 0; i < x.n; ++i) sum = std::fma(left[i], right[i], sum);
    return sum;
  });
}

cublasStatus_t nrm2(cublasHandle_t handle, const char* what, Vector x, void* result, cudaDataType type) {
  return reduce(handle, what, result, type, [=](const Access& access) -> std::optional<double> {
    const Elements elements(access, x, true, false);
    if (!elements) return std::nullopt;
    long double sum = 0;  // has the range for squares of doubles
    for (std::int64_t i = 0; i < x.n; ++i) sum += static_cast<long double>(elements[i]) * elements[i];
    return static_cast<double>(std::sqrt(sum));
  });
}

cublasStatus_t asum(cublasHandle_t handle, const char* what, Vector x, void* result, cudaDataType type) {
  return reduce(handle, what, result, type, [=](const Access& access) -> std::optional<double> {
    const Elements elements(access, x, true, false);
    if (!elements) return std::nullopt;
    double sum = 0;
    for (std::int64_t i = 0; i < x.n; ++i) sum += std::fabs(elements[i]);
    return sum;
  });
}

/// The first place, counted from 1, of the largest (smallest) absolute value; 0 for no elements.
cublasStatus_t extreme(cublasHandle_t handle, const char* what, bool largest, Vector x, void* result,
                       cudaDataType type) {
  return reduce(handle, what, result, type, [=](const Access& access) -> std::optional<double> {
    if (x.n <= 0 || x.increment <= 0) return 0.0;
    const Elements elements(access, x, true, false);
    if (!elements) return std::nullopt;
    std::int64_t place = 0;
    for (std::int64_t i = 1; i < x.n; ++i) {
      const double value = std::fabs(elements[i]), best = std::fabs(elements[place]);
      if (largest ? value > best : value < best) place = i;
    }
    return static_cast<double>(place + 1);
  });
}

/// The result of cublasIsamax and its kin: int, or std::int64_t for the 64-bit names.
cublasStatus_t extreme(cublasHandle_t handle, const char* what, bool largest, Vector x, int* result) {
  return extreme(handle, what, largest, x, result, CUDA_R_32I);
}
cublasStatus_t extreme(cublasHandle_t handle, const char* what, bool largest, Vector x,
                       std::int64_t* result) {
  return extreme(handle, what, largest, x, result, CUDA_R_64I);
}

bool known(cudaDataType type) {
  return type == CUDA_R_16F || type == CUDA_R_16BF || type == CUDA_R_32F || type == CUDA_R_64F;
}

}  // namespace
}  // namespace emulator::blas

using emulator::blas::data_type;

#define EMULATOR_VECTOR(T, X, x_, SUFFIX, Int)                                                               \
  cublasStatus_t cublas##X##axpy_v2##SUFFIX(cublasHandle_t handle, Int n, const T* alpha, const T* x,        \
                                            Int incx, T* y, Int incy) {                                      \
    return emulator::blas::axpy(handle, "cublas" #X "axpy", alpha, data_type<T>, {x, data_type<T>, n, incx}, \
                                {y, data_type<T>, n, incy});                                                 \
  }                                                                                                          \
  cublasStatus_t cublas##X##scal_v2##SUFFIX(cublasHandle_t handle, Int n, const T* alpha, T* x, Int incx) {  \
    return emulator::blas::scal(handle, "cublas" #X "scal", alpha, data_type<T>,                             \
                                {x, data_type<T>, n, incx});                                                 \
  }                                                                                                          \
  cublasStatus_t cublas##X##copy_v2##SUFFIX(cublasHandle_t handle, Int n, const T* x, Int incx, T* y,        \
                                            Int incy) {                                                      \
    return emulator::blas::transfer(handle, "cublas" #X "copy", emulator::blas::Transfer::copy,              \
                                    {x, data_type<T>, n, incx}, {y, data_type<T>, n, incy});                 \
  }                                                                                                          \
  cublasStatus_t cublas##X##swap_v2##SUFFIX(cublasHandle_t handle, Int n, T* x, Int incx, T* y, Int incy) {  \
    return emulator::blas::transfer(handle, "cublas" #X "swap", emulator::blas::Transfer::swap,              \
                                    {x, data_type<T>, n, incx}, {y, data_type<T>, n, incy});                 \
  }                                                                                                          \
  cublasStatus_t cublas##X##rot_v2##SUFFIX(cublasHandle_t handle, Int n, T* x, Int incx, T* y, Int incy,     \
                                           const T* c, const T* s) {                                         \
    return emulator::blas::rot(handle, "cublas" #X "rot", {x, data_type<T>, n, incx},                        \
                               {y, data_type<T>, n, incy}, c, s, data_type<T>);                              \
  }                                                                                                          \
  cublasStatus_t cublas##X##dot_v2##SUFFIX(cublasHandle_t handle, Int n, const T* x, Int incx, const T* y,   \
                                           Int incy, T* result) {                                            \
    return emulator::blas::dot(handle, "cublas" #X "dot", {x, data_type<T>, n, incx},                        \
                               {y, data_type<T>, n, incy}, result, data_type<T>);                            \
  }                                                                                                          \
  cublasStatus_t cublas##X##nrm2_v2##SUFFIX(cublasHandle_t handle, Int n, const T* x, Int incx, T* result) { \
    return emulator::blas::nrm2(handle, "cublas" #X "nrm2", {x, data_type<T>, n, incx}, result,              \
                                data_type<T>);                                                               \
  }                                                                                                          \
  cublasStatus_t cublas##X##asum_v2##SUFFIX(cublasHandle_t handle, Int n, const T* x, Int incx, T* result) { \
    return emulator::blas::asum(handle, "cublas" #X "asum", {x, data_type<T>, n, incx}, result,              \
                                data_type<T>);                                                               \
  }                                                                                                          \
  cublasStatus_t cublasI##x_##amax_v2##SUFFIX(cublasHandle_t handle, Int n, const T* x, Int incx,            \
                                              Int* result) {                                                 \
    return emulator::blas::extreme(handle, "cublasI" #x_ "amax", true, {x, data_type<T>, n, incx}, result);  \
  }                                                                                                          \
  cublasStatus_t cublasI##x_##amin_v2##SUFFIX(cublasHandle_t handle, Int n, const T* x, Int incx,            \
                                              Int* result) {                                                 \
    return emulator::blas::extreme(handle, "cublasI" #x_ "amin", false, {x, data_type<T>, n, incx}, result); \
  }

#define EMULATOR_VECTOR_EX(SUFFIX, Int)                                                                      \
  cublasStatus_t cublasAxpyEx##SUFFIX(cublasHandle_t handle, Int n, const void* alpha,                       \
                                      cudaDataType alpha_type, const void* x, cudaDataType x_type, Int incx, \
                                      void* y, cudaDataType y_type, Int incy, cudaDataType) {                \
    if (!known(alpha_type) || !known(x_type) || !known(y_type))                                              \
      return not_supported("cublasAxpyEx: a type other than R_16F, R_16BF, R_32F, R_64F");                   \
    return emulator::blas::axpy(handle, "cublasAxpyEx", alpha, alpha_type, {x, x_type, n, incx},             \
                                {y, y_type, n, incy});                                                       \
  }                                                                                                          \
  cublasStatus_t cublasScalEx##SUFFIX(cublasHandle_t handle, Int n, const void* alpha,                       \
                                      cudaDataType alpha_type, void* x, cudaDataType x_type, Int incx,       \
                                      cudaDataType) {                                                        \
    if (!known(alpha_type) || !known(x_type))                                                                \
      return not_supported("cublasScalEx: a type other than R_16F, R_16BF, R_32F, R_64F");                   \
    return emulator::blas::scal(handle, "cublasScalEx", alpha, alpha_type, {x, x_type, n, incx});            \
  }                                                                                                          \
  cublasStatus_t cublasDotEx##SUFFIX(cublasHandle_t handle, Int n, const void* x, cudaDataType x_type,       \
                                     Int incx, const void* y, cudaDataType y_type, Int incy, void* result,   \
                                     cudaDataType result_type, cudaDataType) {                               \
    if (!known(x_type) || !known(y_type) || !known(result_type))                                             \
      return not_supported("cublasDotEx: a type other than R_16F, R_16BF, R_32F, R_64F");                    \
    return emulator::blas::dot(handle, "cublasDotEx", {x, x_type, n, incx}, {y, y_type, n, incy}, result,    \
                               result_type);                                                                 \
  }                                                                                                          \
  cublasStatus_t cublasNrm2Ex##SUFFIX(cublasHandle_t handle, Int n, const void* x, cudaDataType x_type,      \
                                      Int incx, void* result, cudaDataType result_type, cudaDataType) {      \
    if (!known(x_type) || !known(result_type))                                                               \
      return not_supported("cublasNrm2Ex: a type other than R_16F, R_16BF, R_32F, R_64F");                   \
    return emulator::blas::nrm2(handle, "cublasNrm2Ex", {x, x_type, n, incx}, result, result_type);          \
  }

using emulator::blas::known;
using emulator::blas::not_supported;

extern "C" {
EMULATOR_VECTOR(float, S, s, , int)
EMULATOR_VECTOR(float, S, s, _64, std::int64_t)
EMULATOR_VECTOR(double, D, d, , int)
EMULATOR_VECTOR(double, D, d, _64, std::int64_t)
EMULATOR_VECTOR_EX(, int)
EMULATOR_VECTOR_EX(_64, std::int64_t)
}
