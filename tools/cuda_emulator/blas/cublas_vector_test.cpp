#include <cublas_v2.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "blas/test_matrix.h"

using namespace emulator::blas;

namespace {

struct Handle {
  cublasHandle_t handle;
  Handle() { REQUIRE(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS); }
  ~Handle() { cublasDestroy(handle); }
  operator cublasHandle_t() const { return handle; }
};

float* floats(const DeviceMatrix& matrix) { return static_cast<float*>(matrix.data); }
double* doubles(const DeviceMatrix& matrix) { return static_cast<double*>(matrix.data); }

/// A vector whose elements lie `increment` apart: a matrix of one row.
TestMatrix vector(cudaDataType type, std::size_t n, std::size_t increment, unsigned seed) {
  return TestMatrix::random(type, 1, n, increment - 1, seed);
}

}  // namespace

TEST_CASE("Vectors: axpy, scal, copy, swap, rot with increments of both signs") {
  const Handle handle;
  constexpr int n = 50;
  const TestMatrix x = vector(CUDA_R_32F, n, 2, 1), y = vector(CUDA_R_32F, n, 3, 2);
  const float alpha = 1.5f, c = 0.6f, s = 0.8f;
  for (const bool reversed : {false, true}) {
    const auto from = [&](std::size_t i) { return x.at(0, reversed ? n - 1 - i : i); };
    const int incx = reversed ? -2 : 2;
    const DeviceMatrix dx(x), axpy(y), copy(y), rx(x), ry(y);
    REQUIRE(cublasSaxpy(handle, n, &alpha, floats(dx), incx, floats(axpy), 3) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(cublasScopy(handle, n, floats(dx), incx, floats(copy), 3) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(cublasSrot(handle, n, floats(rx), incx, floats(ry), 3, &c, &s) == CUBLAS_STATUS_SUCCESS);
    TestMatrix wanted = y, copied = y, rotated_x = x, rotated_y = y;
    for (std::size_t i = 0; i < n; ++i) {
      wanted.set(0, i, alpha * from(i) + y.at(0, i));
      copied.set(0, i, from(i));
      const std::size_t place = reversed ? n - 1 - i : i;
      rotated_x.set(0, place, static_cast<double>(c) * from(i) + static_cast<double>(s) * y.at(0, i));
      rotated_y.set(0, i, static_cast<double>(c) * y.at(0, i) - static_cast<double>(s) * from(i));
    }
    CHECK(axpy.get().bytes == wanted.bytes);
    CHECK(copy.get().bytes == copied.bytes);
    CHECK(rx.get().bytes == rotated_x.bytes);
    CHECK(ry.get().bytes == rotated_y.bytes);
  }
  const DeviceMatrix sx(x), sy(y), scaled(x);
  REQUIRE(cublasSswap(handle, n, floats(sx), 2, floats(sy), 3) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(cublasSscal(handle, n, &alpha, floats(scaled), 2) == CUBLAS_STATUS_SUCCESS);
  TestMatrix swapped_x = x, swapped_y = y, wanted = x;
  for (std::size_t i = 0; i < n; ++i) {
    swapped_x.set(0, i, y.at(0, i));
    swapped_y.set(0, i, x.at(0, i));
    wanted.set(0, i, alpha * x.at(0, i));
  }
  CHECK(sx.get().bytes == swapped_x.bytes);
  CHECK(sy.get().bytes == swapped_y.bytes);
  CHECK(scaled.get().bytes == wanted.bytes);
}

TEST_CASE("Vectors: dot, nrm2, asum, amax, amin to host and device") {
  const Handle handle;
  constexpr int n = 333;
  const TestMatrix x = vector(CUDA_R_32F, n, 1, 1), y = vector(CUDA_R_32F, n, 2, 2),
                   z = vector(CUDA_R_64F, n, 1, 3);
  const DeviceMatrix dx(x), dy(y), dz(z);
  double dot = 0, squares = 0, sum = 0, dot64 = 0;
  std::size_t largest = 0, smallest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    dot += x.at(0, i) * y.at(0, i);
    squares += x.at(0, i) * x.at(0, i);
    sum += std::fabs(x.at(0, i));
    dot64 = std::fma(z.at(0, i), z.at(0, i), dot64);
    if (std::fabs(x.at(0, i)) > std::fabs(x.at(0, largest))) largest = i;
    if (std::fabs(x.at(0, i)) < std::fabs(x.at(0, smallest))) smallest = i;
  }
  float result = -1;
  double result64 = -1;
  int place = -1;
  std::int64_t place64 = -1;
  REQUIRE(cublasSdot(handle, n, floats(dx), 1, floats(dy), 2, &result) == CUBLAS_STATUS_SUCCESS);
  CHECK(result == static_cast<float>(dot));
  REQUIRE(cublasSnrm2(handle, n, floats(dx), 1, &result) == CUBLAS_STATUS_SUCCESS);
  CHECK(result == static_cast<float>(std::sqrt(squares)));
  REQUIRE(cublasSasum(handle, n, floats(dx), 1, &result) == CUBLAS_STATUS_SUCCESS);
  CHECK(result == static_cast<float>(sum));
  REQUIRE(cublasDdot(handle, n, doubles(dz), 1, doubles(dz), 1, &result64) == CUBLAS_STATUS_SUCCESS);
  CHECK(result64 == dot64);
  REQUIRE(cublasIsamax(handle, n, floats(dx), 1, &place) == CUBLAS_STATUS_SUCCESS);
  CHECK(place == static_cast<int>(largest) + 1);
  REQUIRE(cublasIsamin_64(handle, n, floats(dx), 1, &place64) == CUBLAS_STATUS_SUCCESS);
  CHECK(place64 == static_cast<std::int64_t>(smallest) + 1);
  REQUIRE(cublasIsamax(handle, 0, floats(dx), 1, &place) == CUBLAS_STATUS_SUCCESS);
  CHECK(place == 0);
  const DeviceMatrix on_device(TestMatrix::random(CUDA_R_32F, 1, 1, 0, 1));
  REQUIRE(cublasSetPointerMode(handle, CUBLAS_POINTER_MODE_DEVICE) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(cublasSdot(handle, n, floats(dx), 1, floats(dy), 2, floats(on_device)) == CUBLAS_STATUS_SUCCESS);
  CHECK(on_device.get().at(0, 0) == static_cast<float>(dot));
}

TEST_CASE("Matrices: gemv, ger, geam, dgmm") {
  const Handle handle;
  constexpr int m = 23, n = 31;
  const TestMatrix a = TestMatrix::random(CUDA_R_32F, m, n, 2, 1), x = vector(CUDA_R_32F, n, 2, 2),
                   y = vector(CUDA_R_32F, m, 3, 3), b = TestMatrix::random(CUDA_R_32F, n, m, 1, 4);
  const DeviceMatrix da(a), dx(x), dy(y), db(b), transposed_y(x);
  const float alpha = 0.5f, beta = -2;
  REQUIRE(cublasSgemv(handle, CUBLAS_OP_N, m, n, &alpha, floats(da), m + 2, floats(dx), 2, &beta, floats(dy),
                      3) == CUBLAS_STATUS_SUCCESS);
  TestMatrix wanted = y;
  for (std::size_t i = 0; i < m; ++i) {
    double sum = 0;
    for (std::size_t j = 0; j < n; ++j) sum = std::fma(a.at(i, j), x.at(0, j), sum);
    wanted.set(0, i, alpha * sum + beta * y.at(0, i));
  }
  CHECK(dy.get().bytes == wanted.bytes);
  const DeviceMatrix column(y);
  const float one = 1, zero = 0;
  REQUIRE(cublasSgemv(handle, CUBLAS_OP_T, m, n, &one, floats(da), m + 2, floats(column), 3, &zero,
                      floats(transposed_y), 2) == CUBLAS_STATUS_SUCCESS);
  wanted = x;
  for (std::size_t j = 0; j < n; ++j) {
    double sum = 0;
    for (std::size_t i = 0; i < m; ++i) sum = std::fma(a.at(i, j), y.at(0, i), sum);
    wanted.set(0, j, sum);
  }
  CHECK(transposed_y.get().bytes == wanted.bytes);

  const DeviceMatrix outer(a), sum(a), scaled(a);
  REQUIRE(cublasSger(handle, m, n, &alpha, floats(column), 3, floats(dx), 2, floats(outer), m + 2) ==
          CUBLAS_STATUS_SUCCESS);
  REQUIRE(cublasSgeam(handle, CUBLAS_OP_N, CUBLAS_OP_T, m, n, &alpha, floats(sum), m + 2, &beta, floats(db),
                      n + 1, floats(sum), m + 2) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(cublasSdgmm(handle, CUBLAS_SIDE_RIGHT, m, n, floats(da), m + 2, floats(dx), 2, floats(scaled),
                      m + 2) == CUBLAS_STATUS_SUCCESS);
  TestMatrix wanted_outer = a, wanted_sum = a, wanted_scaled = a;
  for (std::size_t j = 0; j < n; ++j) {
    for (std::size_t i = 0; i < m; ++i) {
      wanted_outer.set(i, j, alpha * (y.at(0, i) * x.at(0, j)) + a.at(i, j));
      wanted_sum.set(i, j, alpha * a.at(i, j) + beta * b.at(j, i));
      wanted_scaled.set(i, j, a.at(i, j) * x.at(0, j));
    }
  }
  CHECK(outer.get().bytes == wanted_outer.bytes);
  CHECK(sum.get().bytes == wanted_sum.bytes);
  CHECK(scaled.get().bytes == wanted_scaled.bytes);
}

TEST_CASE("Copies of matrices and vectors") {
  const TestMatrix a = TestMatrix::random(CUDA_R_32F, 5, 4, 3, 1);
  const DeviceMatrix da(TestMatrix::random(CUDA_R_32F, 5, 4, 1, 2));
  REQUIRE(cublasSetMatrix(5, 4, 4, a.bytes.data(), 8, da.data, 6) == CUBLAS_STATUS_SUCCESS);
  const TestMatrix copied = da.get();
  for (std::size_t j = 0; j < 4; ++j) {
    for (std::size_t i = 0; i < 5; ++i) CHECK(copied.at(i, j) == a.at(i, j));
  }
  std::vector<float> back(12, -1);
  REQUIRE(cublasGetVector(4, 4, da.data, 6, back.data(), 3) == CUBLAS_STATUS_SUCCESS);
  for (std::size_t j = 0; j < 4; ++j) CHECK(back[3 * j] == a.at(0, j));
  CHECK(back[1] == -1);
}
