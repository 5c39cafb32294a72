#include <cublasLt.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "blas/test_matrix.h"

using namespace emulator::blas;

namespace {

constexpr std::size_t m = 136, n = 200, k = 24;

double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

/// Central difference of gelu, good to about 1e-9.
double gelu_slope(double x) { return (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5; }

struct Lt {
  cublasLtHandle_t handle;
  cublasLtMatmulDesc_t desc;
  Lt() {
    REQUIRE(cublasLtCreate(&handle) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS);
  }
  ~Lt() {
    cublasLtMatmulDescDestroy(desc);
    cublasLtDestroy(handle);
  }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) const {
    REQUIRE(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value) == CUBLAS_STATUS_SUCCESS);
  }
};

struct Layout {
  cublasLtMatrixLayout_t layout;
  Layout(cudaDataType type, std::size_t rows, std::size_t columns, std::size_t ld,
         cublasLtOrder_t order = CUBLASLT_ORDER_COL) {
    REQUIRE(cublasLtMatrixLayoutCreate(&layout, type, rows, columns, static_cast<std::int64_t>(ld)) ==
            CUBLAS_STATUS_SUCCESS);
    const std::int32_t value = order;
    set(CUBLASLT_MATRIX_LAYOUT_ORDER, value);
  }
  ~Layout() { cublasLtMatrixLayoutDestroy(layout); }
  template <class T>
  void set(cublasLtMatrixLayoutAttribute_t attribute, T value) const {
    REQUIRE(cublasLtMatrixLayoutSetAttribute(layout, attribute, &value, sizeof value) ==
            CUBLAS_STATUS_SUCCESS);
  }
  operator cublasLtMatrixLayout_t() const { return layout; }
};

/// alpha op(A) op(B) + beta C before epilogue and rounding, as f(i, j).
double plain(const TestMatrix& a, const TestMatrix& b, const TestMatrix& c, double alpha, double beta,
             std::size_t i, std::size_t j) {
  double sum = 0;
  for (std::size_t l = 0; l < a.columns; ++l) sum = std::fma(a.at(i, l), b.at(l, j), sum);
  return alpha * sum + (beta == 0 ? 0 : beta * c.at(i, j));
}

/// Equal up to one rounding to the type, and what order of summation and the numeric slope of GELU leave.
void check_close(const TestMatrix& got, const std::function<double(std::size_t, std::size_t)>& wanted) {
  const double rounding = got.type == CUDA_R_16BF ? 0x1p-8 : 0x1p-24;
  std::size_t wrong = 0;
  for (std::size_t j = 0; j < got.columns; ++j) {
    for (std::size_t i = 0; i < got.rows; ++i) {
      const double x = wanted(i, j);
      wrong += !(std::fabs(got.at(i, j) - x) <= 1.01 * rounding * std::fabs(x) + 1e-7);
    }
  }
  CHECK(wrong == 0);
}

/// What a call prints to standard error.
std::string error_output_of(const std::function<void()>& call) {
  std::FILE* const file = std::tmpfile();
  REQUIRE(file);
  std::fflush(stderr);
  const int before = dup(2);
  dup2(fileno(file), 2);
  call();
  std::fflush(stderr);
  dup2(before, 2);
  close(before);
  std::rewind(file);
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

}  // namespace

TEST_CASE("Every epilogue, f32 and bf16") {
  for (const cudaDataType type : {CUDA_R_32F, CUDA_R_16BF}) {
    const TestMatrix a = TestMatrix::random(type, m, k, 0, 1), b = TestMatrix::random(type, k, n, 0, 2),
                     c = TestMatrix::random(type, m, n, 0, 3), bias = TestMatrix::random(type, m, 1, 0, 4),
                     gelu_in = TestMatrix::random(type, m, n, 0, 5);
    const DeviceMatrix da(a), db(b), dc(c), dbias(bias);
    const Layout la(type, m, k, m), lb(type, k, n, k), lc(type, m, n, m);
    const float alpha = 0.5f, beta = 1;
    const auto x = [&](std::size_t i, std::size_t j) { return plain(a, b, c, alpha, beta, i, j); };
    const auto with_bias = [&](std::size_t i, std::size_t j) { return x(i, j) + bias.at(i, 0); };
    // Mask of 256 bits a column, and inputs of GELU.
    TestMatrix mask(CUDA_R_8I, 32, n);
    for (std::size_t i = 0; i < mask.bytes.size(); ++i) mask.bytes[i] = static_cast<std::byte>(i * 37 % 256);
    const auto masked = [&](const TestMatrix& bits, std::size_t i, std::size_t j) {
      return (static_cast<unsigned>(bits.bytes[j * 32 + i / 8]) >> (i % 8) & 1) != 0;
    };
    struct Case {
      cublasLtEpilogue_t epilogue;
      std::function<double(std::size_t, std::size_t)> wanted;
    };
    const auto relu = [](double value) { return value > 0 ? value : 0; };
    const std::function<double(std::size_t, std::size_t)> drelu = [&](std::size_t i, std::size_t j) {
      return masked(mask, i, j) ? x(i, j) : 0;
    };
    const std::function<double(std::size_t, std::size_t)> dgelu = [&](std::size_t i, std::size_t j) {
      return x(i, j) * gelu_slope(gelu_in.at(i, j));
    };
    const Case cases[] = {
        {CUBLASLT_EPILOGUE_DEFAULT, x},
        {CUBLASLT_EPILOGUE_RELU, [&](std::size_t i, std::size_t j) { return relu(x(i, j)); }},
        {CUBLASLT_EPILOGUE_BIAS, with_bias},
        {CUBLASLT_EPILOGUE_RELU_BIAS, [&](std::size_t i, std::size_t j) { return relu(with_bias(i, j)); }},
        {CUBLASLT_EPILOGUE_GELU, [&](std::size_t i, std::size_t j) { return gelu(x(i, j)); }},
        {CUBLASLT_EPILOGUE_GELU_BIAS, [&](std::size_t i, std::size_t j) { return gelu(with_bias(i, j)); }},
        {CUBLASLT_EPILOGUE_RELU_AUX, [&](std::size_t i, std::size_t j) { return relu(x(i, j)); }},
        {CUBLASLT_EPILOGUE_RELU_AUX_BIAS,
         [&](std::size_t i, std::size_t j) { return relu(with_bias(i, j)); }},
        {CUBLASLT_EPILOGUE_GELU_AUX, [&](std::size_t i, std::size_t j) { return gelu(x(i, j)); }},
        {CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
         [&](std::size_t i, std::size_t j) { return gelu(with_bias(i, j)); }},
        {CUBLASLT_EPILOGUE_DRELU, drelu},
        {CUBLASLT_EPILOGUE_DRELU_BGRAD, drelu},
        {CUBLASLT_EPILOGUE_DGELU, dgelu},
        {CUBLASLT_EPILOGUE_DGELU_BGRAD, dgelu},
        {CUBLASLT_EPILOGUE_BGRADA, x},
        {CUBLASLT_EPILOGUE_BGRADB, x},
    };
    for (const Case& test : cases) {
      CAPTURE(static_cast<int>(test.epilogue));
      const Lt lt;
      const unsigned bits = test.epilogue;
      const bool auxiliary = bits & 128, uses_mask = bits & (2 | 8), of_b = bits & 512;
      const TestMatrix gradient_shape = TestMatrix::random(type, of_b ? n : m, 1, 0, 6);
      const DeviceMatrix dd(c), dmask(mask), dgelu_in(gelu_in), gradient(gradient_shape);
      lt.set(CUBLASLT_MATMUL_DESC_EPILOGUE, test.epilogue);
      if (bits & 4) lt.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, dbias.data);
      if (bits & (16 | 256 | 512)) lt.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, gradient.data);
      if (auxiliary) {
        lt.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, uses_mask ? dmask.data : dgelu_in.data);
        lt.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, static_cast<std::int64_t>(uses_mask ? 256 : m));
      }
      REQUIRE(cublasLtMatmul(lt.handle, lt.desc, &alpha, da.data, la, db.data, lb, &beta, dc.data, lc,
                             dd.data, lc, nullptr, nullptr, 0, nullptr) == CUBLAS_STATUS_SUCCESS);
      check_close(dd.get(), test.wanted);
      if (auxiliary && (bits & (2 | 32))) {
        const auto before = bits & 4 ? std::function<double(std::size_t, std::size_t)>(with_bias) : x;
        if (uses_mask) {
          const TestMatrix got = dmask.get();
          for (std::size_t j = 0; j < n; j += 7) {
            for (std::size_t i = 0; i < m; ++i) CHECK(masked(got, i, j) == (before(i, j) > 0));
          }
        } else {
          check_close(dgelu_in.get(), before);
        }
      }
      if (bits & (16 | 256 | 512)) {
        check_close(gradient.get(), [&](std::size_t i, std::size_t) {
          double sum = 0;
          for (std::size_t l = 0; l < (bits & 16 ? n : k); ++l) {
            sum += bits & 16 ? test.wanted(i, l) : of_b ? b.at(l, i) : a.at(i, l);
          }
          return sum;
        });
      }
    }
  }
}

TEST_CASE("Row order, transposes, batches with broadcast, device scalars") {
  // Row-major [m, k] and transposed [n, k]: y = x W^T of a row-major program.
  const TestMatrix x = TestMatrix::random(CUDA_R_32F, k, m, 1, 1),
                   w = TestMatrix::random(CUDA_R_32F, k, n, 2, 2);
  const DeviceMatrix dx(x), dw(w), dy(TestMatrix::random(CUDA_R_32F, n, m, 3, 3));
  const Lt lt;
  lt.set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_T);
  const Layout lx(CUDA_R_32F, m, k, k + 1, CUBLASLT_ORDER_ROW),
      lw(CUDA_R_32F, n, k, k + 2, CUBLASLT_ORDER_ROW), ly(CUDA_R_32F, m, n, n + 3, CUBLASLT_ORDER_ROW);
  const float one = 1, zero = 0;
  REQUIRE(cublasLtMatmul(lt.handle, lt.desc, &one, dx.data, lx, dw.data, lw, &zero, nullptr, ly, dy.data, ly,
                         nullptr, nullptr, 0, nullptr) == CUBLAS_STATUS_SUCCESS);
  const auto product = [&](std::size_t row, std::size_t column) {
    double sum = 0;
    for (std::size_t l = 0; l < k; ++l) sum = std::fma(x.at(l, row), w.at(l, column), sum);
    return static_cast<double>(static_cast<float>(sum));
  };
  check_close(dy.get(), [&](std::size_t column, std::size_t row) { return product(row, column); });

  // Three products with one B, alpha and beta on the device.
  constexpr std::int32_t batches = 3;
  const TestMatrix a = TestMatrix::random(CUDA_R_16F, 8, 5 * batches, 0, 4),
                   b = TestMatrix::random(CUDA_R_16F, 5, 6, 0, 5),
                   c = TestMatrix::random(CUDA_R_16F, 8, 6 * batches, 0, 6);
  TestMatrix scalars(CUDA_R_32F, 2, 1);
  scalars.set(0, 0, 2);
  scalars.set(1, 0, -1);
  const DeviceMatrix da(a), db(b), dc(c), ds(scalars);
  const Lt batched;
  batched.set(CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_DEVICE);
  const Layout la(CUDA_R_16F, 8, 5, 8), lb(CUDA_R_16F, 5, 6, 5), lc(CUDA_R_16F, 8, 6, 8);
  for (const Layout* layout : {&la, &lb, &lc}) layout->set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, batches);
  la.set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, std::int64_t{40});
  lc.set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, std::int64_t{48});
  REQUIRE(cublasLtMatmul(batched.handle, batched.desc, ds.data, da.data, la, db.data, lb,
                         static_cast<float*>(ds.data) + 1, dc.data, lc, dc.data, lc, nullptr, nullptr, 0,
                         nullptr) == CUBLAS_STATUS_SUCCESS);
  TestMatrix wanted = c;
  for (std::size_t i = 0; i < batches; ++i) {
    for (std::size_t column = 0; column < 6; ++column) {
      for (std::size_t row = 0; row < 8; ++row) {
        wanted.set(row, 6 * i + column, plain(a.part(5 * i, 5), b, c.part(6 * i, 6), 2, -1, row, column));
      }
    }
  }
  CHECK(dc.get().bytes == wanted.bytes);

  // alpha for each row, beta zero.
  TestMatrix factors = TestMatrix::random(CUDA_R_32F, 8, 1, 0, 7);
  const DeviceMatrix dfactors(factors), dout(c.part(0, 6));
  const Lt rows;
  rows.set(CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_ZERO);
  const Layout ra(CUDA_R_16F, 8, 5, 8), rb(CUDA_R_16F, 5, 6, 5), rc(CUDA_R_16F, 8, 6, 8);
  REQUIRE(cublasLtMatmul(rows.handle, rows.desc, dfactors.data, da.data, ra, db.data, rb, nullptr, nullptr,
                         rc, dout.data, rc, nullptr, nullptr, 0, nullptr) == CUBLAS_STATUS_SUCCESS);
  TestMatrix scaled = c.part(0, 6);
  for (std::size_t column = 0; column < 6; ++column) {
    for (std::size_t row = 0; row < 8; ++row) {
      scaled.set(row, column, plain(a.part(0, 5), b, c, factors.at(row, 0), 0, row, column));
    }
  }
  CHECK(dout.get().bytes == scaled.bytes);
}

TEST_CASE("Heuristics, attributes, and what is not supported") {
  const Lt lt;
  const Layout la(CUDA_R_16BF, m, k, m), lb(CUDA_R_16BF, k, n, k), lc(CUDA_R_16BF, m, n, m),
      f8(CUDA_R_8F_E4M3, m, k, m), f8b(CUDA_R_8F_E4M3, k, n, k);
  cublasLtMatmulPreference_t preference;
  REQUIRE(cublasLtMatmulPreferenceCreate(&preference) == CUBLAS_STATUS_SUCCESS);
  const std::uint64_t workspace = 1 << 20;
  REQUIRE(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &workspace, sizeof workspace) == CUBLAS_STATUS_SUCCESS);
  cublasLtMatmulHeuristicResult_t results[3];
  int found = -1;
  REQUIRE(cublasLtMatmulAlgoGetHeuristic(lt.handle, lt.desc, la, lb, lc, lc, preference, 3, results,
                                         &found) == CUBLAS_STATUS_SUCCESS);
  CHECK(found == 1);
  CHECK(results[0].state == CUBLAS_STATUS_SUCCESS);
  CHECK(results[0].workspaceSize <= workspace);
  CHECK(cublasLtMatmulAlgoGetHeuristic(lt.handle, lt.desc, f8, f8b, lc, lc, preference, 3, results, &found) ==
        CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK(found == 0);
  CHECK(cublasLtMatmulAlgoGetHeuristic(lt.handle, lt.desc, la, la, lc, lc, preference, 3, results, &found) ==
        CUBLAS_STATUS_INVALID_VALUE);
  std::size_t written = 0;
  std::int32_t operation = -1;
  CHECK(cublasLtMatmulDescGetAttribute(lt.desc, CUBLASLT_MATMUL_DESC_TRANSA, &operation, sizeof operation,
                                       &written) == CUBLAS_STATUS_SUCCESS);
  CHECK(operation == CUBLAS_OP_N);
  CHECK(written == 4);
  CHECK(cublasLtMatmulDescSetAttribute(lt.desc, CUBLASLT_MATMUL_DESC_TRANSA, &operation, 2) ==
        CUBLAS_STATUS_INVALID_VALUE);
  float scale = 1;
  lt.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<void*>(&scale));
  CHECK(cublasLtMatmulAlgoGetHeuristic(lt.handle, lt.desc, la, lb, lc, lc, preference, 3, results, &found) ==
        CUBLAS_STATUS_NOT_SUPPORTED);
  cublasLtMatmulPreferenceDestroy(preference);
}

TEST_CASE("A refusal names its reason, once") {
  const Lt lt;
  const Layout a(CUDA_R_8F_E5M2, 32, 16, 32), b(CUDA_R_8F_E5M2, 32, 16, 32), d(CUDA_R_16BF, 16, 16, 16);
  const float one = 1, zero = 0;
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  const auto call = [&] {
    status = cublasLtMatmul(lt.handle, lt.desc, &one, &one, a, &one, b, &zero, nullptr, d, nullptr, d,
                            nullptr, nullptr, 0, nullptr);
  };
  CHECK(
      error_output_of(call) ==
      "cuda_emulator: note: CUBLAS_STATUS_NOT_SUPPORTED: product of A R_8F_E5M2 and B R_8F_E5M2 into R_16BF "
      "with cublasComputeType_t 68\n");
  CHECK(status == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK(error_output_of(call) == "");
  const std::string attribute = error_output_of(
      [&] { status = cublasLtMatmulDescSetAttribute(lt.desc, CUBLASLT_MATMUL_DESC_TRANSA, &one, 3); });
  CHECK(status == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(attribute ==
        "cuda_emulator: note: CUBLAS_STATUS_INVALID_VALUE: set: attribute 3 has 4 bytes, not 3\n");
}

TEST_CASE("Products of 8-bit floats with scales") {
  constexpr std::size_t rows = 48, columns = 32, depth = 64;
  TestMatrix scales(CUDA_R_32F, 3, 1);
  scales.set(0, 0, 0.5);
  scales.set(1, 0, 4);
  scales.set(2, 0, 0.25);
  const DeviceMatrix device_scales(scales);
  float* const scale = static_cast<float*>(device_scales.data);
  for (const auto& [type_a, type_b] :
       {std::pair(CUDA_R_8F_E4M3, CUDA_R_8F_E5M2), std::pair(CUDA_R_8F_E4M3, CUDA_R_8F_E4M3),
        std::pair(CUDA_R_8F_E5M2, CUDA_R_8F_E4M3)})
    for (const cudaDataType type_d : {CUDA_R_16BF, CUDA_R_32F, CUDA_R_8F_E4M3, CUDA_R_8F_E5M2}) {
      CAPTURE(type_a);
      CAPTURE(type_b);
      CAPTURE(type_d);
      const bool scaled_d = type_d == CUDA_R_8F_E4M3 || type_d == CUDA_R_8F_E5M2;
      const cudaDataType type_c = scaled_d ? CUDA_R_16BF : type_d;
      const TestMatrix a = TestMatrix::random(type_a, depth, rows, 0, 1),
                       b = TestMatrix::random(type_b, depth, columns, 0, 2),
                       c = TestMatrix::random(type_c, rows, columns, 0, 3);
      const DeviceMatrix da(a), db(b), dc(c), dd(TestMatrix(type_d, rows, columns));
      const Lt lt;
      lt.set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
      lt.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<void*>(scale));
      lt.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<void*>(scale + 1));
      if (scaled_d) lt.set(CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, static_cast<void*>(scale + 2));
      const Layout la(type_a, depth, rows, depth), lb(type_b, depth, columns, depth),
          lc(type_c, rows, columns, rows), ld(type_d, rows, columns, rows);
      const float alpha = 3, beta = -1;
      REQUIRE(cublasLtMatmul(lt.handle, lt.desc, &alpha, da.data, la, db.data, lb, &beta, dc.data, lc,
                             dd.data, ld, nullptr, nullptr, 0, nullptr) == CUBLAS_STATUS_SUCCESS);
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
      const TestMatrix got = dd.get();
      TestMatrix wanted(type_d, rows, columns);
      std::size_t wrong = 0;
      for (std::size_t j = 0; j < columns; ++j)
        for (std::size_t i = 0; i < rows; ++i) {
          double sum = 0;
          for (std::size_t l = 0; l < depth; ++l) sum = std::fma(a.at(l, i), b.at(l, j), sum);
          wanted.set(i, j, (scaled_d ? 0.25 : 1) * (3 * 0.5 * 4 * sum - c.at(i, j)));
          wrong += got.at(i, j) != wanted.at(i, j);
        }
      CHECK(wrong == 0);
    }
}

TEST_CASE("Transforms change order and type") {
  const TestMatrix a = TestMatrix::random(CUDA_R_32F, 7, 9, 1, 1);
  const DeviceMatrix da(a), dout(TestMatrix::random(CUDA_R_16BF, 9, 7, 0, 2));
  cublasLtHandle_t handle;
  cublasLtMatrixTransformDesc_t desc;
  REQUIRE(cublasLtCreate(&handle) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(cublasLtMatrixTransformDescCreate(&desc, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS);
  const Layout from(CUDA_R_32F, 7, 9, 8), to(CUDA_R_16BF, 7, 9, 9, CUBLASLT_ORDER_ROW);
  const float two = 2, zero = 0;
  REQUIRE(cublasLtMatrixTransform(handle, desc, &two, da.data, from, &zero, nullptr, nullptr, dout.data, to,
                                  nullptr) == CUBLAS_STATUS_SUCCESS);
  const TestMatrix got = dout.get();
  TestMatrix wanted(CUDA_R_16BF, 9, 7);
  for (std::size_t i = 0; i < 7; ++i) {
    for (std::size_t j = 0; j < 9; ++j) wanted.set(j, i, 2 * a.at(i, j));
  }
  CHECK(got.bytes == wanted.bytes);
  cublasLtMatrixTransformDescDestroy(desc);
  cublasLtDestroy(handle);
}
