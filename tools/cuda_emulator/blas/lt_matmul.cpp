#include <algorithm>
#include <cmath>
#include <string>

#include "blas/gemm_work.h"
#include "blas/lt_descriptors.h"

/// D = epilogue(alpha op(A) op(B) + beta C).
namespace emulator::blas {
namespace {

constexpr unsigned epilogue_relu = 2, epilogue_bias = 4, epilogue_drelu = 8, epilogue_bgrad = 16,
                   epilogue_gelu = 32, epilogue_dgelu = 64, epilogue_auxiliary = 128, epilogue_bgrada = 256,
                   epilogue_bgradb = 512;

/// sqrt(2 / pi): GELU(x) = x (1 + tanh(scale (x + cubic x^3))) / 2
constexpr double gelu_scale = 0.79788456080286535588, gelu_cubic = 0.044715;

double gelu(double x) { return 0.5 * x * (1 + std::tanh(gelu_scale * (x + gelu_cubic * x * x * x))); }

double gelu_derivative(double x) {
  const double t = std::tanh(gelu_scale * (x + gelu_cubic * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * gelu_scale * (1 + 3 * gelu_cubic * x * x);
}

/// Everything that a call says, checked.
struct Plan {
  MatmulDescriptor description;
  Compute compute;
  std::size_t m = 0, n = 0, k = 0, batches = 1;
  bool transpose_a = false, transpose_b = false;
  LayoutDescriptor layout_a, layout_b, layout_c, layout_d;
  cudaDataType auxiliary_type = CUDA_R_32F, bias_type = CUDA_R_32F;
  bool has(unsigned part) const { return (description.epilogue & part) != 0; }
  bool relu_mask() const { return has(epilogue_auxiliary) && has(epilogue_relu | epilogue_drelu); }
  bool gelu_input() const { return has(epilogue_auxiliary) && has(epilogue_gelu | epilogue_dgelu); }
  bool reads_auxiliary() const { return has(epilogue_drelu | epilogue_dgelu); }
};

Matrix matrix(const LayoutDescriptor& layout, const void* data, std::size_t batch) {
  const Matrix first{data,      static_cast<cudaDataType>(layout.type), layout.rows, layout.columns,
                     layout.ld, layout.order == CUBLASLT_ORDER_ROW};
  return first.moved(static_cast<std::ptrdiff_t>(batch) * layout.batch_stride);
}

bool known_epilogue(unsigned epilogue) {
  switch (epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_RELU_AUX:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_RELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DRELU:
    case CUBLASLT_EPILOGUE_DRELU_BGRAD:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB:
      return true;
    default:
      return false;
  }
}

cublasStatus_t check_layout(const LayoutDescriptor& layout) {
  if (layout.order != CUBLASLT_ORDER_COL && layout.order != CUBLASLT_ORDER_ROW)
    return not_supported("order " + std::to_string(layout.order) + " of a matrix: only rows and columns");
  if (layout.batch_mode != CUBLASLT_BATCH_MODE_STRIDED)
    return not_supported("batches of a matrix other than strided ones");
  const std::uint64_t length = layout.order == CUBLASLT_ORDER_ROW ? layout.columns : layout.rows;
  if (layout.ld < static_cast<std::int64_t>(length) || layout.batch_count < 1)
    return invalid("a matrix whose leading dimension is less than its rows, or whose batch count is below 1");
  return CUBLAS_STATUS_SUCCESS;
}

bool is_float8(cudaDataType type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

/// Products of 8-bit floats (cublasLtMatmul, "FP8 data types"): not of two e5m2; C is of 16 bits where D is of 8.
bool float8_types(cudaDataType a, cudaDataType b, cudaDataType c, cudaDataType d) {
  const bool halves = c == CUDA_R_16F || c == CUDA_R_16BF;
  return is_float8(a) && is_float8(b) && (a == CUDA_R_8F_E4M3 || b == CUDA_R_8F_E4M3) &&
         (is_float8(d) ? halves : c == d && (halves || c == CUDA_R_32F));
}

/// Refuses what 8-bit floats do not allow, and scales where nothing is scaled.
cublasStatus_t check_scales(const Plan& plan, bool float8) {
  const MatmulDescriptor& description = plan.description;
  if (description.amax_d || description.auxiliary_scale || description.auxiliary_amax ||
      description.d_out_scale)
    return not_supported("AMAX_D, D_OUT_SCALE, and scale or AMAX of the auxiliary matrix");
  if (description.a_scale_mode || description.b_scale_mode || description.c_scale_mode ||
      description.d_scale_mode)
    return not_supported("scale modes other than CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F");
  if (!float8 && (description.a_scale || description.b_scale))
    return not_supported("A_SCALE and B_SCALE of factors that are no 8-bit floats");
  if (description.c_scale) return not_supported("C_SCALE, which is for a C of 8-bit floats");
  if (description.d_scale && !is_float8(static_cast<cudaDataType>(plan.layout_d.type)))
    return not_supported("D_SCALE of a D that is no 8-bit float");
  if (!float8) return CUBLAS_STATUS_SUCCESS;
  if (description.transa != CUBLAS_OP_T || description.transb != CUBLAS_OP_N)
    return not_supported("8-bit floats but for A transposed and B not");
  for (const LayoutDescriptor* layout : {&plan.layout_a, &plan.layout_b, &plan.layout_d})
    if (layout->rows % 16 || layout->columns % 16 || layout->order != CUBLASLT_ORDER_COL)
      return not_supported("8-bit floats but for dimensions that are multiples of 16, in column order");
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t make_plan(const cublasLtMatmulDesc_t desc, const cublasLtMatrixLayout_t a,
                         const cublasLtMatrixLayout_t b, const cublasLtMatrixLayout_t c,
                         const cublasLtMatrixLayout_t d, Plan& plan) {
  if (!desc || !a || !b || !c || !d) return invalid("product: a descriptor is null");
  MatmulDescriptor& description = plan.description = inside<MatmulDescriptor>(desc);
  plan.layout_a = inside<LayoutDescriptor>(a);
  plan.layout_b = inside<LayoutDescriptor>(b);
  plan.layout_c = inside<LayoutDescriptor>(c);
  plan.layout_d = inside<LayoutDescriptor>(d);
  for (const LayoutDescriptor* layout : {&plan.layout_a, &plan.layout_b, &plan.layout_c, &plan.layout_d}) {
    const cublasStatus_t status = check_layout(*layout);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
  }
  const auto type = [](const LayoutDescriptor& layout) { return static_cast<cudaDataType>(layout.type); };
  const auto compute_type = static_cast<cublasComputeType_t>(description.compute_type);
  const bool float8 =
      float8_types(type(plan.layout_a), type(plan.layout_b), type(plan.layout_c), type(plan.layout_d)) &&
      compute_type == CUBLAS_COMPUTE_32F;
  const std::optional<Compute> compute =
      float8 ? Compute{CUDA_R_32F, InputRounding::none}
             : compute_of(compute_type, type(plan.layout_a), type(plan.layout_b), type(plan.layout_d));
  if (!compute)
    return refuse_types(compute_type, type(plan.layout_a), type(plan.layout_b), type(plan.layout_d));
  if (!float8 && plan.layout_c.type != plan.layout_d.type)
    return not_supported("a C whose type is not that of D");
  if (compute->scale != description.scale_type)
    return not_supported("scale type " + std::to_string(description.scale_type) +
                         ": the compute type wants cudaDataType " + std::to_string(compute->scale));
  plan.compute = *compute;
  if (const cublasStatus_t status = check_scales(plan, float8); status != CUBLAS_STATUS_SUCCESS)
    return status;
  if (description.fill_mode != CUBLAS_FILL_MODE_FULL) return not_supported("FILL_MODE other than full");
  if (description.transc != CUBLAS_OP_N) return not_supported("TRANSC");
  if (description.transa > CUBLAS_OP_C || description.transb > CUBLAS_OP_C)
    return not_supported("unknown TRANSA or TRANSB");
  if (description.pointer_mode < 0 ||
      description.pointer_mode > CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST)
    return not_supported("pointer mode " + std::to_string(description.pointer_mode));
  if (!known_epilogue(description.epilogue))
    return not_supported("epilogue " + std::to_string(description.epilogue));
  plan.transpose_a = description.transa != CUBLAS_OP_N;
  plan.transpose_b = description.transb != CUBLAS_OP_N;
  plan.m = plan.layout_d.rows;
  plan.n = plan.layout_d.columns;
  plan.k = plan.transpose_a ? plan.layout_a.rows : plan.layout_a.columns;
  plan.batches = static_cast<std::size_t>(plan.layout_d.batch_count);
  if ((plan.transpose_a ? plan.layout_a.columns : plan.layout_a.rows) != plan.m ||
      (plan.transpose_b ? plan.layout_b.rows : plan.layout_b.columns) != plan.n ||
      (plan.transpose_b ? plan.layout_b.columns : plan.layout_b.rows) != plan.k ||
      plan.layout_c.rows != plan.m || plan.layout_c.columns != plan.n ||
      plan.layout_a.batch_count != plan.layout_d.batch_count ||
      plan.layout_b.batch_count != plan.layout_d.batch_count ||
      plan.layout_c.batch_count != plan.layout_d.batch_count) {
    return invalid("product: rows, columns or batch counts of A, B, C and D do not fit together");
  }
  const cudaDataType d_type = type(plan.layout_d);
  // Biases of products of 8-bit floats have 16 bits (cublasLtMatmul, "FP8 data types").
  const cudaDataType bias_type = !float8                            ? d_type
                                 : plan.layout_c.type == CUDA_R_16F ? CUDA_R_16F
                                                                    : CUDA_R_16BF;
  plan.bias_type = description.bias_type < 0 ? bias_type : static_cast<cudaDataType>(description.bias_type);
  plan.auxiliary_type =
      description.auxiliary_type < 0 ? d_type : static_cast<cudaDataType>(description.auxiliary_type);
  if (element_bytes(plan.bias_type) == 0 || element_bytes(plan.auxiliary_type) == 0)
    return not_supported("this type of the bias or the auxiliary matrix");
  if (plan.has(epilogue_bias | epilogue_bgrad | epilogue_bgrada | epilogue_bgradb) && !description.bias) {
    return invalid("the epilogue needs BIAS_POINTER");
  }
  if (plan.has(epilogue_auxiliary)) {
    if (plan.layout_d.order != CUBLASLT_ORDER_COL)
      return not_supported("an auxiliary matrix where D is in row order");
    if (!description.auxiliary || description.auxiliary_ld < static_cast<std::int64_t>(plan.m) ||
        description.auxiliary_ld % (plan.relu_mask() ? 128 : 8) != 0) {
      return invalid(
          "EPILOGUE_AUX_POINTER is null, or EPILOGUE_AUX_LD too small or no multiple of 8 (128 for a mask)");
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

/// alpha or beta: one number, or one for each row of D in device memory.
class RowScalars {
 public:
  RowScalars() = default;
  RowScalars(const void* pointer, cudaDataType type, bool on_device, bool vector)
      : vector_(vector ? pointer : nullptr), type_(type) {
    if (!vector && pointer) scalar_ = Scalar(pointer, type, on_device);
  }
  /// The numbers of a batch; false after a report.
  bool read(const Access& access, std::size_t rows, std::ptrdiff_t offset,
            std::vector<double>& values) const {
    if (!vector_) {
      const std::optional<double> value = scalar_.value(access);
      values.assign(rows, value.value_or(0));
      return value.has_value();
    }
    const std::size_t size = element_bytes(type_);
    const void* const data = access.read(
        static_cast<const std::byte*>(vector_) + offset * static_cast<std::ptrdiff_t>(size), rows * size);
    if (!data) return false;
    values.resize(rows);
    for (std::size_t i = 0; i < rows; ++i) values[i] = load(type_, data, static_cast<std::ptrdiff_t>(i));
    return true;
  }

 private:
  const void* vector_ = nullptr;
  cudaDataType type_ = CUDA_R_32F;
  Scalar scalar_{0.0};
};

/// One product of a batch, with the host addresses of all that it uses.
struct Batch {
  std::vector<double> alpha, beta;
  double scale_d = 1;  ///< of the result, for 8-bit floats
  bool any_beta = false;
  View c, d;
  const void* bias_in = nullptr;
  void* bias_out = nullptr;
  void* auxiliary = nullptr;
  /// Sums of D over the columns of each tile, for bias gradients: [tile of columns][row].
  std::vector<double> column_sums;
};

class Matmul {
 public:
  Matmul(const Plan& plan, const Access& access) : plan_(plan), access_(access) {}

  bool run(const RowScalars& alpha, const RowScalars& beta, const void* a, const void* b, const void* c,
           void* d) {
    for (std::size_t i = 0; i < plan_.batches; ++i) {
      if (!prepare(alpha, beta, matrix(plan_.layout_a, a, i), matrix(plan_.layout_b, b, i),
                   matrix(plan_.layout_c, c, i), matrix(plan_.layout_d, d, i), i)) {
        return false;
      }
    }
    for (std::size_t i = 0; i < plan_.batches; ++i) touch(access_, matrix(plan_.layout_d, d, i), true);
    count_products(products_, plan_.compute.rounding);
    multiply(products_, plan_.compute.rounding, [this](const Tile& tile) { finish(tile); });
    for (std::size_t i = 0; i < plan_.batches; ++i) write_bias_gradient(products_[i], batches_[i]);
    return true;
  }

 private:
  bool prepare(const RowScalars& alpha, const RowScalars& beta, const Matrix& a, const Matrix& b,
               const Matrix& c, const Matrix& d, std::size_t index) {
    Batch batch;
    const std::ptrdiff_t offset = static_cast<std::ptrdiff_t>(index) *
                                  static_cast<std::ptrdiff_t>(plan_.description.alpha_batch_stride);
    if (!alpha.read(access_, plan_.m, offset, batch.alpha) ||
        !beta.read(access_, plan_.m, offset, batch.beta)) {
      return false;
    }
    const MatmulDescriptor& description = plan_.description;
    const std::optional<double> scale_a = scale(description.a_scale), scale_b = scale(description.b_scale),
                                scale_d = scale(description.d_scale);
    if (!scale_a || !scale_b || !scale_d) return false;
    for (double& x : batch.alpha) x *= *scale_a * *scale_b;
    batch.scale_d = *scale_d;
    const auto used = [](const std::vector<double>& values) {
      return std::any_of(values.begin(), values.end(), [](double x) { return x != 0; });
    };
    batch.any_beta = used(batch.beta);
    Product product{{}, {}, plan_.m, plan_.n, 0};
    if (used(batch.alpha) || plan_.has(epilogue_bgrada | epilogue_bgradb)) {
      const void *const host_a = host(access_, a), *const host_b = host(access_, b);
      if (!host_a || !host_b) return false;
      touch(access_, a, false);
      touch(access_, b, false);
      product.a = a.view(host_a, plan_.transpose_a);
      product.b = b.view(host_b, plan_.transpose_b);
      product.k = plan_.k;
    }
    if (batch.any_beta) {
      const void* const host_c = host(access_, c);
      if (!host_c) return false;
      touch(access_, c, false);
      batch.c = c.view(host_c, false);
    }
    const void* const host_d = host(access_, d);
    if (!host_d || !prepare_epilogue(batch, index)) return false;
    batch.d = d.view(host_d, false);
    products_.push_back(product);
    batches_.push_back(std::move(batch));
    return true;
  }

  /// A factor in device memory; 1 where the descriptor names none. Nothing after a report.
  std::optional<double> scale(const void* pointer) const {
    return pointer ? Scalar(pointer, CUDA_R_32F, true).value(access_) : 1.0;
  }

  bool prepare_epilogue(Batch& batch, std::size_t index) {
    const MatmulDescriptor& description = plan_.description;
    const std::size_t bias_bytes = element_bytes(plan_.bias_type);
    auto* const bias = static_cast<std::byte*>(description.bias) +
                       static_cast<std::ptrdiff_t>(index) * description.bias_batch_stride *
                           static_cast<std::ptrdiff_t>(bias_bytes);
    if (plan_.has(epilogue_bias)) {
      batch.bias_in = access_.read(bias, plan_.m * bias_bytes);
      if (!batch.bias_in) return false;
    }
    if (plan_.has(epilogue_bgrad | epilogue_bgrada | epilogue_bgradb)) {
      batch.bias_out = access_.write(bias, (plan_.has(epilogue_bgradb) ? plan_.n : plan_.m) * bias_bytes);
      if (!batch.bias_out) return false;
    }
    if (plan_.has(epilogue_bgrad)) {
      batch.column_sums.resize((plan_.n + tile_columns - 1) / tile_columns * plan_.m);
    }
    if (!plan_.has(epilogue_auxiliary)) return true;
    // The mask is a matrix of bytes whose columns hold 8 rows each.
    const bool mask = plan_.relu_mask();
    Matrix auxiliary{description.auxiliary,
                     mask ? CUDA_R_8I : plan_.auxiliary_type,
                     mask ? (plan_.m + 7) / 8 : plan_.m,
                     plan_.n,
                     mask ? description.auxiliary_ld / 8 : description.auxiliary_ld,
                     false};
    const std::int64_t stride = description.auxiliary_batch_stride;
    auxiliary = auxiliary.moved(static_cast<std::ptrdiff_t>(index) * (mask ? stride / 8 : stride));
    batch.auxiliary = host(access_, auxiliary);
    if (!batch.auxiliary) return false;
    touch(access_, auxiliary, !plan_.reads_auxiliary());
    return true;
  }

  /// The value of D at (i, j) before rounding, from alpha * sum + beta * c. Reads and writes the auxiliary matrix.
  double epilogue(const Batch& batch, std::size_t i, std::size_t j, double x) const {
    if (batch.bias_in) x += load(plan_.bias_type, batch.bias_in, static_cast<std::ptrdiff_t>(i));
    const std::size_t place = i + j * static_cast<std::size_t>(plan_.description.auxiliary_ld);
    if (plan_.relu_mask()) {
      auto& byte = static_cast<std::uint8_t*>(batch.auxiliary)[place / 8];
      const auto bit = static_cast<std::uint8_t>(1u << place % 8);
      if (plan_.reads_auxiliary()) return byte & bit ? x : 0;
      byte = static_cast<std::uint8_t>(x > 0 ? byte | bit : byte & ~bit);
    }
    if (plan_.gelu_input()) {
      const auto at = static_cast<std::ptrdiff_t>(place);
      if (plan_.reads_auxiliary())
        return x * gelu_derivative(load(plan_.auxiliary_type, batch.auxiliary, at));
      store(plan_.auxiliary_type, batch.auxiliary, at, x);
    }
    if (plan_.has(epilogue_relu)) return x < 0 ? 0 : x;
    if (plan_.has(epilogue_gelu)) return gelu(x);
    return x;
  }

  void finish(const Tile& tile) {
    Batch& batch = batches_[tile.product];
    double* const gradient =
        batch.column_sums.empty() ? nullptr : batch.column_sums.data() + tile.column / tile_columns * plan_.m;
    for (std::size_t column = 0; column < tile.columns; ++column) {
      const std::size_t j = tile.column + column;
      for (std::size_t row = 0; row < tile.rows; ++row) {
        const std::size_t i = tile.row + row;
        double x = batch.alpha[i] * tile.sums[row + column * tile.pitch];
        if (batch.any_beta && batch.beta[i] != 0)
          x += batch.beta[i] * load(batch.c.type, batch.c.data, place(batch.c, i, j));
        x = epilogue(batch, i, j, x);
        if (gradient) gradient[i] += x;
        store(batch.d.type, const_cast<void*>(batch.d.data), place(batch.d, i, j), batch.scale_d * x);
      }
    }
  }

  static std::ptrdiff_t place(const View& view, std::size_t i, std::size_t j) {
    return static_cast<std::ptrdiff_t>(i) * view.row_stride +
           static_cast<std::ptrdiff_t>(j) * view.column_stride;
  }

  void write_bias_gradient(const Product& product, Batch& batch) const {
    if (!batch.bias_out) return;
    const bool of_b = plan_.has(epilogue_bgradb);
    for (std::size_t i = 0; i < (of_b ? plan_.n : plan_.m); ++i) {
      double sum = 0;
      if (plan_.has(epilogue_bgrad)) {
        for (std::size_t t = i; t < batch.column_sums.size(); t += plan_.m) sum += batch.column_sums[t];
      } else {
        for (std::size_t l = 0; l < product.k; ++l) {
          sum += of_b ? load(product.b.type, product.b.data, place(product.b, l, i))
                      : load(product.a.type, product.a.data, place(product.a, i, l));
        }
      }
      store(plan_.bias_type, batch.bias_out, static_cast<std::ptrdiff_t>(i), sum);
    }
  }

  const Plan& plan_;
  const Access access_;
  std::vector<Product> products_;
  std::vector<Batch> batches_;
};

}  // namespace
}  // namespace emulator::blas

using namespace emulator::blas;

extern "C" {

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_desc, const void* b,
                              cublasLtMatrixLayout_t b_desc, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_desc, void* d, cublasLtMatrixLayout_t d_desc,
                              const cublasLtMatmulAlgo_t*, void* workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  Plan plan;
  const cublasStatus_t status = make_plan(desc, a_desc, b_desc, c_desc, d_desc, plan);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (plan.m == 0 || plan.n == 0) return CUBLAS_STATUS_SUCCESS;
  if (!alpha || !a || !b || !d) return invalid("product: alpha, A, B or D is null");
  const int mode = plan.description.pointer_mode;
  const cudaDataType type = plan.compute.scale;
  const bool beta_zero = mode == CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_ZERO;
  if (!beta_zero && !beta) return invalid("product: beta is null");
  const RowScalars alphas(alpha, type, mode == CUBLASLT_POINTER_MODE_DEVICE,
                          mode >= CUBLASLT_POINTER_MODE_DEVICE_VECTOR);
  const RowScalars betas(beta_zero ? nullptr : beta, type, mode == CUBLASLT_POINTER_MODE_DEVICE,
                         mode == CUBLASLT_POINTER_MODE_DEVICE_VECTOR);
  constexpr std::size_t workspace_sign =
      256;  // stands for the workspace: two streams that use one race there
  return enqueue(stream, "cublasLtMatmul", [=](unsigned operation) {
    const Access access{operation, "cublasLtMatmul"};
    if (workspace && workspace_bytes)
      access.touch(workspace, std::min(workspace_bytes, workspace_sign), true);
    return Matmul(plan, access).run(alphas, betas, a, b, c, d);
  });
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!found || !preference || wanted < 1 || !results)
    return invalid("heuristic: an argument is null, or no result is wanted");
  *found = 0;
  Plan plan;
  const cublasStatus_t status = make_plan(desc, a, b, c, d, plan);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  results[0] = {};
  inside<Algorithm>(&results[0].algo) = {};
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].wavesCount = 1;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!algorithm || !result) return invalid("algorithm check: an argument is null");
  Plan plan;
  const cublasStatus_t status = make_plan(desc, a, b, c, d, plan);
  *result = {};
  result->algo = *algorithm;
  result->state = status;
  result->wavesCount = 1;
  return status;
}

cublasStatus_t cublasLtMatmulAlgoGetIds(cublasLtHandle_t handle, cublasComputeType_t compute, cudaDataType_t,
                                        cudaDataType_t a, cudaDataType_t b, cudaDataType_t c,
                                        cudaDataType_t d, int wanted, int ids[], int* found) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!ids || wanted < 1) return invalid("algorithm ids: none are wanted");
  if (!compute_of(compute, a, b, d) && !float8_types(a, b, c, d)) return refuse_types(compute, a, b, d);
  ids[0] = 0;
  if (found) *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t handle, cublasComputeType_t compute, cudaDataType_t,
                                      cudaDataType_t a, cudaDataType_t b, cudaDataType_t c, cudaDataType_t d,
                                      int id, cublasLtMatmulAlgo_t* algorithm) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!algorithm || id != 0) return invalid("algorithm: null, or an id that is not 0");
  if (!compute_of(compute, a, b, d) && !float8_types(a, b, c, d)) return refuse_types(compute, a, b, d);
  *algorithm = {};
  inside<Algorithm>(algorithm) = {};
  return CUBLAS_STATUS_SUCCESS;
}

/// C = alpha op(A) + beta op(B), with changes of order and type.
cublasStatus_t cublasLtMatrixTransform(cublasLtHandle_t handle, cublasLtMatrixTransformDesc_t desc,
                                       const void* alpha, const void* a, cublasLtMatrixLayout_t a_desc,
                                       const void* beta, const void* b, cublasLtMatrixLayout_t b_desc,
                                       void* c, cublasLtMatrixLayout_t c_desc, cudaStream_t stream) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!desc || !alpha || !a || !a_desc || !c || !c_desc || (b && (!b_desc || !beta)))
    return invalid("transform: an argument is null");
  const TransformDescriptor description = inside<TransformDescriptor>(desc);
  const LayoutDescriptor from_a = inside<LayoutDescriptor>(a_desc), to = inside<LayoutDescriptor>(c_desc),
                         from_b = b ? inside<LayoutDescriptor>(b_desc) : to;
  if (description.pointer_mode > CUBLASLT_POINTER_MODE_DEVICE)
    return not_supported("transform: pointer mode " + std::to_string(description.pointer_mode));
  for (const LayoutDescriptor* layout : {&from_a, &from_b, &to}) {
    const cublasStatus_t status = check_layout(*layout);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (element_bytes(static_cast<cudaDataType>(layout->type)) == 0)
      return not_supported("transform: a matrix of cudaDataType " + std::to_string(layout->type));
    if (layout->batch_count != to.batch_count) return invalid("transform: batch counts differ");
  }
  const bool ta = description.transa != CUBLAS_OP_N, tb = description.transb != CUBLAS_OP_N;
  const auto fits = [&](const LayoutDescriptor& layout, bool transposed) {
    return (transposed ? layout.columns : layout.rows) == to.rows &&
           (transposed ? layout.rows : layout.columns) == to.columns;
  };
  if (!fits(from_a, ta) || (b && !fits(from_b, tb)))
    return invalid("transform: rows or columns do not fit together");
  const auto scale_type = static_cast<cudaDataType>(description.scale_type);
  if (element_bytes(scale_type) == 0)
    return not_supported("transform: scale type " + std::to_string(scale_type));
  const bool on_device = description.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE;
  const Scalar scale_a(alpha, scale_type, on_device),
      scale_b = b ? Scalar(beta, scale_type, on_device) : Scalar(0.0);
  return enqueue(stream, "cublasLtMatrixTransform", [=](unsigned operation) {
    const Access access{operation, "cublasLtMatrixTransform"};
    const std::optional<double> factor_a = scale_a.value(access), factor_b = scale_b.value(access);
    if (!factor_a || !factor_b) return false;
    for (int batch = 0; batch < to.batch_count; ++batch) {
      const auto index = static_cast<std::size_t>(batch);
      const auto input = [&](const LayoutDescriptor& layout, const void* data, bool transposed,
                             double factor) {
        if (factor == 0) return View{};
        const Matrix from = matrix(layout, data, index);
        const void* const address = host(access, from);
        if (address) touch(access, from, false);
        return from.view(address, transposed);
      };
      const View view_a = input(from_a, a, ta, *factor_a), view_b = input(from_b, b, tb, *factor_b);
      const Matrix target = matrix(to, c, index);
      void* const address = host(access, target);
      if (!address || (*factor_a != 0 && !view_a.data) || (*factor_b != 0 && !view_b.data)) return false;
      touch(access, target, true);
      const View view_c = target.view(address, false);
      const auto place = [](const View& view, std::size_t i, std::size_t j) {
        return static_cast<std::ptrdiff_t>(i) * view.row_stride +
               static_cast<std::ptrdiff_t>(j) * view.column_stride;
      };
      for (std::size_t j = 0; j < to.columns; ++j) {
        for (std::size_t i = 0; i < to.rows; ++i) {
          double value = 0;
          if (view_a.data) value = *factor_a * load(view_a.type, view_a.data, place(view_a, i, j));
          if (view_b.data) value += *factor_b * load(view_b.type, view_b.data, place(view_b, i, j));
          store(view_c.type, address, place(view_c, i, j), value);
        }
      }
    }
    return true;
  });
}
}
