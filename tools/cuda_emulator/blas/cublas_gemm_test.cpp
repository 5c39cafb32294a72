#include <cublas_v2.h>
#include <doctest/doctest.h>

#include <chrono>
#include <cstring>

#include "blas/test_matrix.h"

using namespace emulator::blas;

namespace {

struct Types {
  const char* name;
  cudaDataType input, output, scale;
  cublasComputeType_t compute;
  InputRounding rounding;
};

const Types all_types[] = {
    {"f32", CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, InputRounding::none},
    {"tf32", CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32, InputRounding::tf32},
    {"fast bf16", CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_16BF, InputRounding::bfloat16},
    {"fast f16", CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_16F, InputRounding::half},
    {"f64", CUDA_R_64F, CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F, InputRounding::none},
    {"f16", CUDA_R_16F, CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F, InputRounding::none},
    {"f16 in f16", CUDA_R_16F, CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_16F, InputRounding::none},
    {"f16 to f32", CUDA_R_16F, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, InputRounding::none},
    {"bf16", CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F, InputRounding::none},
    {"bf16 to f32", CUDA_R_16BF, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, InputRounding::none},
    {"i8", CUDA_R_8I, CUDA_R_32I, CUDA_R_32I, CUBLAS_COMPUTE_32I, InputRounding::none},
    {"i8 to f32", CUDA_R_8I, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, InputRounding::none},
};

struct Sizes {
  std::size_t m, n, k;
};
const Sizes all_sizes[] = {{1, 1, 1},      {3, 5, 7},      {12, 4, 16}, {13, 9, 300},
                           {100, 200, 33}, {97, 193, 257}, {1, 40, 64}};

/// C by three loops, from what the device matrices hold.
TestMatrix expected(const TestMatrix& a, const TestMatrix& b, const TestMatrix& c, bool ta, bool tb,
                    double alpha, double beta, InputRounding rounding) {
  TestMatrix result = c;
  const std::size_t k = ta ? a.rows : a.columns;
  for (std::size_t j = 0; j < c.columns; ++j) {
    for (std::size_t i = 0; i < c.rows; ++i) {
      double sum = 0;
      for (std::size_t l = 0; l < k; ++l) {
        sum = std::fma(round_input(rounding, ta ? a.at(l, i) : a.at(i, l)),
                       round_input(rounding, tb ? b.at(j, l) : b.at(l, j)), sum);
      }
      result.set(i, j, beta == 0 ? alpha * sum : alpha * sum + beta * c.at(i, j));
    }
  }
  return result;
}

/// A scalar of a type, for the calls' untyped pointers.
struct ScalarBytes {
  std::byte bytes[8];
  ScalarBytes(cudaDataType type, double value) { store(type, bytes, 0, value); }
};

struct Handle {
  cublasHandle_t handle;
  Handle() { REQUIRE(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS); }
  ~Handle() { cublasDestroy(handle); }
  operator cublasHandle_t() const { return handle; }
};

cublasOperation_t operation(bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; }

}  // namespace

TEST_CASE("GemmEx gives the plain product for all types, sizes, transposes and scalars") {
  const Handle handle;
  unsigned seed = 1;
  for (const Types& types : all_types) {
    for (const Sizes& size : all_sizes) {
      for (int variant = 0; variant < 16; ++variant) {
        if (size.m * size.n > 5000 && variant % 5 != 0) continue;
        const bool ta = variant & 1, tb = variant & 2, with_beta = variant & 4, gaps = variant & 8;
        CAPTURE(types.name);
        CAPTURE(size.m);
        CAPTURE(variant);
        const bool integer = types.input == CUDA_R_8I;
        const double alpha = integer ? 3 : variant & 8 ? 1 : 0.75;
        const double beta = with_beta ? (integer ? -2 : 0.5) : 0;
        const std::size_t gap = gaps ? 3 : 0;
        TestMatrix a =
            TestMatrix::random(types.input, ta ? size.k : size.m, ta ? size.m : size.k, gap, ++seed);
        TestMatrix b =
            TestMatrix::random(types.input, tb ? size.n : size.k, tb ? size.k : size.n, gap, ++seed);
        TestMatrix c = TestMatrix::random(types.output, size.m, size.n, gap, ++seed);
        if (!with_beta) c.fill_with_nan();
        const TestMatrix wanted = expected(a, b, c, ta, tb, alpha, beta, types.rounding);
        DeviceMatrix da(a), db(b), dc(c);
        const ScalarBytes alpha_bytes(types.scale, alpha), beta_bytes(types.scale, beta);
        const auto i = [](std::size_t x) { return static_cast<int>(x); };
        REQUIRE(cublasGemmEx(handle, operation(ta), operation(tb), i(size.m), i(size.n), i(size.k),
                             alpha_bytes.bytes, da.data, types.input, i(a.pitch), db.data, types.input,
                             i(b.pitch), beta_bytes.bytes, dc.data, types.output, i(c.pitch), types.compute,
                             CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS);
        REQUIRE(dc.get().bytes == wanted.bytes);
      }
    }
  }
}

TEST_CASE("Sgemm, Dgemm and Hgemm, with scalars on the device and 64-bit sizes") {
  const Handle handle;
  float* scalars;
  REQUIRE(cudaMalloc(reinterpret_cast<void**>(&scalars), 8) == cudaSuccess);
  const float values[2] = {2.0f, -1.0f};
  REQUIRE(cudaMemcpy(scalars, values, 8, cudaMemcpyHostToDevice) == cudaSuccess);
  TestMatrix a = TestMatrix::random(CUDA_R_32F, 20, 30, 0, 1),
             b = TestMatrix::random(CUDA_R_32F, 30, 10, 0, 2),
             c = TestMatrix::random(CUDA_R_32F, 20, 10, 0, 3);
  DeviceMatrix da(a), db(b), dc(c);
  REQUIRE(cublasSetPointerMode(handle, CUBLAS_POINTER_MODE_DEVICE) == CUBLAS_STATUS_SUCCESS);
  const auto f = [](void* p) { return static_cast<float*>(p); };
  REQUIRE(cublasSgemm_64(handle, CUBLAS_OP_N, CUBLAS_OP_N, 20, 10, 30, scalars, f(da.data), 20, f(db.data),
                         30, scalars + 1, f(dc.data), 20) == CUBLAS_STATUS_SUCCESS);
  CHECK(dc.get().bytes == expected(a, b, c, false, false, 2, -1, InputRounding::none).bytes);
  cudaFree(scalars);

  REQUIRE(cublasSetPointerMode(handle, CUBLAS_POINTER_MODE_HOST) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH) == CUBLAS_STATUS_SUCCESS);
  DeviceMatrix dt(c);
  const float one = 1, zero = 0;
  REQUIRE(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 20, 10, 30, &one, f(da.data), 20, f(db.data), 30,
                      &zero, f(dt.data), 20) == CUBLAS_STATUS_SUCCESS);
  CHECK(dt.get().bytes == expected(a, b, c, false, false, 1, 0, InputRounding::tf32).bytes);
  cublasMath_t mode;
  CHECK(cublasGetMathMode(handle, &mode) == CUBLAS_STATUS_SUCCESS);
  CHECK(mode == CUBLAS_TF32_TENSOR_OP_MATH);
}

TEST_CASE("Batches by strides, by arrays of pointers and in groups") {
  const Handle handle;
  constexpr int batches = 5, m = 7, n = 6, k = 9;
  TestMatrix a = TestMatrix::random(CUDA_R_16BF, m, k * batches, 1, 1),
             b = TestMatrix::random(CUDA_R_16BF, k, n * batches, 0, 2),
             c = TestMatrix::random(CUDA_R_16BF, m, n * batches, 2, 3), wanted = c;
  for (std::size_t i = 0; i < batches; ++i) {
    const TestMatrix part = expected(a.part(i * k, k), b.part(i * n, n), c.part(i * n, n), false, false, 1, 1,
                                     InputRounding::none);
    for (std::size_t column = 0; column < n; ++column) {
      for (std::size_t row = 0; row < m; ++row) wanted.set(row, i * n + column, part.at(row, column));
    }
  }
  const float one = 1;
  const auto i = [](std::size_t x) { return static_cast<int>(x); };
  DeviceMatrix da(a), db(b), dc(c);
  REQUIRE(cublasGemmStridedBatchedEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &one, da.data, CUDA_R_16BF,
                                     i(a.pitch), i(a.pitch) * k, db.data, CUDA_R_16BF, i(b.pitch),
                                     i(b.pitch) * n, &one, dc.data, CUDA_R_16BF, i(c.pitch), i(c.pitch) * n,
                                     batches, CUBLAS_COMPUTE_32F,
                                     CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS);
  CHECK(dc.get().bytes == wanted.bytes);

  void* pointers[3][batches];
  DeviceMatrix dp(c), dg(c);
  void *arrays[3], *grouped_c;
  for (std::size_t p = 0; p < batches; ++p) {
    pointers[0][p] = static_cast<std::byte*>(da.data) + 2 * p * a.pitch * k;
    pointers[1][p] = static_cast<std::byte*>(db.data) + 2 * p * b.pitch * n;
    pointers[2][p] = static_cast<std::byte*>(dp.data) + 2 * p * c.pitch * n;
  }
  for (int p = 0; p < 3; ++p) {
    REQUIRE(cudaMalloc(&arrays[p], sizeof pointers[p]) == cudaSuccess);
    REQUIRE(cudaMemcpy(arrays[p], pointers[p], sizeof pointers[p], cudaMemcpyHostToDevice) == cudaSuccess);
  }
  const auto array = [&](int p) { return static_cast<void**>(arrays[p]); };
  REQUIRE(cublasGemmBatchedEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &one, array(0), CUDA_R_16BF,
                              i(a.pitch), array(1), CUDA_R_16BF, i(b.pitch), &one, array(2), CUDA_R_16BF,
                              i(c.pitch), batches, CUBLAS_COMPUTE_32F,
                              CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS);
  CHECK(dp.get().bytes == wanted.bytes);

  // Two groups of 2 and 3: the second has fewer columns and leaves the last one alone.
  for (std::size_t p = 0; p < batches; ++p)
    pointers[2][p] = static_cast<std::byte*>(dg.data) + 2 * p * c.pitch * n;
  REQUIRE(cudaMalloc(&grouped_c, sizeof pointers[2]) == cudaSuccess);
  REQUIRE(cudaMemcpy(grouped_c, pointers[2], sizeof pointers[2], cudaMemcpyHostToDevice) == cudaSuccess);
  const cublasOperation_t none[2] = {CUBLAS_OP_N, CUBLAS_OP_N};
  const int ms[2] = {m, m}, ns[2] = {n, n - 1}, ks[2] = {k, k}, lda[2] = {i(a.pitch), i(a.pitch)},
            ldb[2] = {i(b.pitch), i(b.pitch)}, ldc[2] = {i(c.pitch), i(c.pitch)}, sizes[2] = {2, 3};
  const float ones[2] = {1, 1};
  REQUIRE(cublasGemmGroupedBatchedEx(handle, none, none, ms, ns, ks, ones, array(0), CUDA_R_16BF, lda,
                                     array(1), CUDA_R_16BF, ldb, ones, static_cast<void**>(grouped_c),
                                     CUDA_R_16BF, ldc, 2, sizes,
                                     CUBLAS_COMPUTE_32F) == CUBLAS_STATUS_SUCCESS);
  TestMatrix wanted_groups = wanted;
  for (std::size_t p = 2; p < batches; ++p) {
    for (std::size_t row = 0; row < m; ++row) wanted_groups.set(row, p * n + n - 1, c.at(row, p * n + n - 1));
  }
  CHECK(dg.get().bytes == wanted_groups.bytes);
  for (void* p : arrays) cudaFree(p);
  cudaFree(grouped_c);
}

TEST_CASE("Arguments that cuBLAS refuses") {
  const Handle handle;
  const float one = 1;
  float* none = nullptr;
  CHECK(cublasSgemm(nullptr, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, none, 2, none, 2, &one, none, 2) ==
        CUBLAS_STATUS_NOT_INITIALIZED);
  CHECK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, none, 1, none, 2, &one, none, 2) ==
        CUBLAS_STATUS_INVALID_VALUE);
  CHECK(cublasSgemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, 2, 2, 3, &one, none, 2, none, 3, &one, none, 2) ==
        CUBLAS_STATUS_INVALID_VALUE);
  CHECK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, -1, 2, 2, &one, none, 2, none, 2, &one, none, 2) ==
        CUBLAS_STATUS_INVALID_VALUE);
  CHECK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 0, 2, 2, &one, none, 2, none, 2, &one, none, 2) ==
        CUBLAS_STATUS_SUCCESS);
  CHECK(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, none, CUDA_R_16F, 2, none, CUDA_R_16BF,
                     2, &one, none, CUDA_R_32F, 2, CUBLAS_COMPUTE_32F,
                     CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, none, CUDA_R_8F_E4M3, 2, none,
                     CUDA_R_8F_E4M3, 2, &one, none, CUDA_R_32F, 2, CUBLAS_COMPUTE_32F,
                     CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK(std::strcmp(cublasGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED") == 0);
}

TEST_CASE("A product of 512 x 512 x 512 takes little time") {
  const Handle handle;
  TestMatrix a = TestMatrix::random(CUDA_R_32F, 512, 512, 0, 1),
             b = TestMatrix::random(CUDA_R_32F, 512, 512, 0, 2);
  DeviceMatrix da(a), db(b), dc(a);
  const float one = 1, zero = 0;
  const auto begin = std::chrono::steady_clock::now();
  REQUIRE(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, 512, 512, 512, &one, da.data, CUDA_R_32F, 512,
                       db.data, CUDA_R_32F, 512, &zero, dc.data, CUDA_R_32F, 512, CUBLAS_COMPUTE_32F,
                       CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  MESSAGE("512^3 f32: " << seconds << " s");
  WARN(seconds < 0.2);
  const TestMatrix c = dc.get();
  for (std::size_t j = 0; j < 512; j += 101) {
    for (std::size_t i = 0; i < 512; i += 97) {
      double sum = 0;
      for (std::size_t l = 0; l < 512; ++l) sum += a.at(l, i) * b.at(l, j);
      CHECK(c.at(i, j) == static_cast<float>(sum));
    }
  }
}
