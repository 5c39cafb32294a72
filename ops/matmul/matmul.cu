#include <array>
#include <atomic>
#include <bit>
#include <map>
#include <mutex>

#include "core/cuda/cublas.cuh"
#include "core/cuda/elementwise.cuh"
#include "core/log.h"
#include "ops/matmul/matmul.h"
#include "ops/matmul/matmul_kernels.h"
#include "ops/matmul/tiled_product.cuh"

namespace nemocube::cuda {
namespace {

// cuBLAS knows matrices of columns. A tensor [rows, cols] is its matrix of `cols` rows, and it forms
// c^T = op(b)^T op(a)^T: its first factor is b.

// The rest of the distance between rows says nothing where there is at most one; cuBLAS wants the columns at
// least.
std::int64_t step_of(const Tensor& t) { return t.rows() <= 1 ? t.cols() : t.row_stride(); }

// Of the memory where the tensor begins, up to the 256 bytes that cuBLAS asks for.
std::uint32_t alignment_of(const Tensor& t) {
  return std::uint32_t{1} << std::min(
             8, std::countr_zero(static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(t.address()))));
}

cudaDataType type_of(DType dtype) { return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

/// All that the choice of an algorithm depends on.
using Key = std::array<std::int64_t, 16>;

std::atomic<bool> tf32_allowed = false;
std::atomic<std::int64_t> largest_workspace = 0;

struct Plan {
  cublasLtMatmulDescOpaque_t product{};
  cublasLtMatrixLayoutOpaque_t a{}, b{}, c{};
  cublasLtMatmulHeuristicResult_t chosen{};
  bool supported = false;
};

// No reduction in the output: its order is that of the blocks, or it rounds to bf16 more than once. Parts of
// a sum may be added in f32 in the order of the parts; not where a bias follows, which cuBLAS 13 adds to what
// it has rounded then (seen on an H200).
constexpr std::uint32_t reductions(bool bias) {
  return bias ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

template <class T>
void prefer(cublasLtMatmulPreferenceOpaque_t& preference, cublasLtMatmulPreferenceAttributes_t attribute,
            T value) {
  NEMOCUBE_CUBLAS(cublas().preference_set(&preference, attribute, &value, sizeof value));
}

void describe(cublasLtMatrixLayoutOpaque_t& layout, const Tensor& t) {
  NEMOCUBE_CUBLAS(cublas().layout_init(&layout, sizeof layout, type_of(t.dtype()),
                                       static_cast<std::uint64_t>(t.cols()),
                                       static_cast<std::uint64_t>(t.rows()), step_of(t)));
}

void set_bias(Plan& plan, const Tensor& bias) {
  const void* const at = bias.address();
  NEMOCUBE_CUBLAS(cublas().product_set(&plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &at, sizeof at));
}

/// `bias` may be undefined, as in all that follows.
Plan make_plan(const Tensor& c, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
               const Tensor& bias, bool tf32) {
  const CublasLt& lt = cublas();
  Plan plan;
  NEMOCUBE_CUBLAS(lt.product_init(&plan.product, sizeof plan.product,
                                  tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t first = transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                          second = transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  NEMOCUBE_CUBLAS(lt.product_set(&plan.product, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
  NEMOCUBE_CUBLAS(lt.product_set(&plan.product, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
  if (bias) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    NEMOCUBE_CUBLAS(lt.product_set(&plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    set_bias(plan, bias);
  }
  describe(plan.a, a);
  describe(plan.b, b);
  describe(plan.c, c);
  cublasLtMatmulPreferenceOpaque_t preference{};
  NEMOCUBE_CUBLAS(lt.preference_init(&preference, sizeof preference));
  prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions(bias.defined()));
  prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
         static_cast<std::uint64_t>(most_product_workspace));
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(b));
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(a));
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(c));
  prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(c));
  int found = 0;
  const cublasStatus_t status = lt.heuristic(lt.handle, &plan.product, &plan.b, &plan.a, &plan.c, &plan.c,
                                             &preference, 1, &plan.chosen, &found);
  plan.supported = status == CUBLAS_STATUS_SUCCESS && found > 0 && plan.chosen.state == CUBLAS_STATUS_SUCCESS;
  log_debug("cuBLAS: new product ", a.dtype(), " -> ", c.dtype(), ", m=", c.rows(), " n=", c.cols(),
            " k=", transpose_a ? a.rows() : a.cols(),
            plan.supported ? "" : ": not supported: ", plan.supported ? "" : lt.status_string(status));
  return plan;
}

/// Plans that were made, to be used again: asking cuBLAS takes longer than queueing a product. A plan that is
/// dropped and made again is the same.
class PlanCache {
 public:
  Plan find_or_make(const Tensor& c, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b,
                    const Tensor& bias) {
    const auto is_bf16 = [](const Tensor& t) { return std::int64_t{t.dtype() == DType::bf16}; };
    const bool tf32 = a.dtype() == DType::f32 && tf32_allowed;
    const Key key{c.rows(),        c.cols(),        a.rows(),       a.cols(),
                  step_of(c),      step_of(a),      step_of(b),     alignment_of(c),
                  alignment_of(a), alignment_of(b), is_bf16(c),     is_bf16(a),
                  transpose_a,     transpose_b,     bias.defined(), tf32};
    const std::lock_guard lock(mutex_);
    if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
    if (plans_.size() >= most_plans) plans_.clear();
    return plans_.emplace(key, make_plan(c, a, transpose_a, b, transpose_b, bias, tf32)).first->second;
  }

 private:
  static constexpr std::size_t most_plans = 4096;
  std::mutex mutex_;
  std::map<Key, Plan> plans_;
};

PlanCache& plan_cache() {
  static auto* cache = new PlanCache;  // never destroyed: products may run until the process ends
  return *cache;
}

template <class T, class Out>
struct Product {
  Rows<Out> c;
  Rows<const T> a, b;
  std::int64_t m, n, k;
  bool add, aligned;
};

template <class T, class Out, bool transpose_a, bool transpose_b>
__global__ void __launch_bounds__(FmaTiles::threads) tiled_product_kernel(const Product<T, Out> p) {
  extern __shared__ __align__(16) char shared[];
  const std::int64_t across = (p.n + FmaTiles::cols - 1) / FmaTiles::cols;
  const std::int64_t row = blockIdx.x / across * FmaTiles::rows,
                     column = blockIdx.x % across * FmaTiles::cols;
  const TileFactor<T> a{transpose_a ? p.a.start + row : p.a.row(row), p.a.stride, p.m - row, p.aligned};
  const TileFactor<T> b{transpose_b ? p.b.row(column) : p.b.start + column, p.b.stride, p.n - column,
                        p.aligned};
  const TileResult<Out> c{.rows = {p.c.row(row) + column, p.c.stride},
                          .height = p.m - row,
                          .width = p.n - column,
                          .add = p.add,
                          .aligned = p.aligned};
  FmaTiles::form<!transpose_a, transpose_b>(shared, a, b, p.k, c);
}

template <class T, class Out, bool transpose_a, bool transpose_b>
void launch_tiled(const Output& c, const Tensor& a, const Tensor& b) {
  const std::int64_t m = c.to.rows(), n = c.to.cols();
  const Product<T, Out> p{.c = rows_of<Out>(c.to),
                          .a = const_rows_of<T>(a),
                          .b = const_rows_of<T>(b),
                          .m = m,
                          .n = n,
                          .k = transpose_a ? a.rows() : a.cols(),
                          .add = c.how == Into::add,
                          .aligned = packs_aligned(c.to, a, b)};
  launch_shared("tiled product", tiled_product_kernel<T, Out, transpose_a, transpose_b>,
                blocks_for(tiles_of<FmaTiles>(m, n), 1), FmaTiles::threads, FmaTiles::shared_bytes, p);
}

template <class T, class Out>
void tiled_of(const Output& c, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b) {
  if (transpose_a)
    transpose_b ? launch_tiled<T, Out, true, true>(c, a, b) : launch_tiled<T, Out, true, false>(c, a, b);
  else
    transpose_b ? launch_tiled<T, Out, false, true>(c, a, b) : launch_tiled<T, Out, false, false>(c, a, b);
}

void by_tiles(const Output& c, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b) {
  visit_storage("matmul", a.dtype(), [&]<class T>(TypeTag<T>) {
    if (c.to.dtype() == a.dtype())
      tiled_of<T, T>(c, a, transpose_a, b, transpose_b);
    else if constexpr (!std::is_same_v<T, float>)
      tiled_of<T, float>(c, a, transpose_a, b, transpose_b);
  });
}

void queue(Plan& plan, const Output& c, const Tensor& a, const Tensor& b) {
  const auto workspace_bytes = static_cast<std::int64_t>(plan.chosen.workspaceSize);
  std::int64_t largest = largest_workspace;
  while (workspace_bytes > largest && !largest_workspace.compare_exchange_weak(largest, workspace_bytes)) {
  }
  const Tensor workspace =
      workspace_bytes > 0 ? Tensor::empty({workspace_bytes}, DType::u8, c.to.device()) : Tensor();
  const float alpha = 1, beta = c.how == Into::add ? 1 : 0;
  void* const to = c.to.address();
  note_launch("matmul");
  NEMOCUBE_CUBLAS(cublas().matmul(cublas().handle, &plan.product, &alpha, b.address(), &plan.b, a.address(),
                                  &plan.a, &beta, to, &plan.c, to, &plan.c, &plan.chosen.algo,
                                  workspace ? workspace.address() : nullptr, plan.chosen.workspaceSize,
                                  stream()));
}

void product(const Output& c, const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b) {
  visit_storage("matmul", a.dtype(), [](auto) {});
  Plan plan = plan_cache().find_or_make(c.to, a, transpose_a, b, transpose_b, {});
  if (!plan.supported) return by_tiles(c, a, transpose_a, b, transpose_b);
  queue(plan, c, a, b);
}

// An f32 factor is the sum of three bf16 terms: products with it are products of bf16.
constexpr int terms_of_f32 = 3, split_threads = 256;

/// The terms of a matrix in `places` copies of its shape, which lie `step` elements apart. Two bits of
/// `order` say which term a copy has.
struct Split {
  Rows<__nv_bfloat16> to;
  Rows<const float> from;
  std::int64_t rows, cols, step;
  unsigned order;
  int places;
};

constexpr unsigned order_of(std::initializer_list<unsigned> terms) {
  unsigned order = 0, place = 0;
  for (const unsigned term : terms) order |= term << 2 * place++;
  return order;
}

/// Of the thread's pack of N columns.
template <int N>
__device__ void split_own_pack(const Split& s, unsigned block) {
  const std::int64_t packs = (s.cols + N - 1) / N, own = std::int64_t{block} * split_threads + threadIdx.x,
                     row = own / packs, c = own % packs * N;
  if (row >= s.rows) return;
  float rest[N], value[N];
  Pack<__nv_bfloat16, N> terms[terms_of_f32];
  Pack<float, N>::load(s.from.row(row) + c, s.cols - c).read(rest);
#pragma unroll
  for (int i = 0; i < terms_of_f32; ++i) {
    terms[i] = Pack<__nv_bfloat16, N>::of(rest);
    terms[i].read(value);
#pragma unroll
    for (int j = 0; j < N; ++j) rest[j] -= value[j];  // exact
  }
  __nv_bfloat16* const to = s.to.row(row) + c;
  for (int i = 0; i < s.places; ++i) {
    const unsigned term = s.order >> 2 * i & 3;
    (term == 0 ? terms[0] : term == 1 ? terms[1] : terms[2]).store(to + i * s.step, s.cols - c);
  }
}

template <int N>
__global__ void __launch_bounds__(split_threads)
    split_kernel(const Split a, const Split b, unsigned blocks_of_a) {
  if (blockIdx.x < blocks_of_a)
    split_own_pack<N>(a, blockIdx.x);
  else
    split_own_pack<N>(b, blockIdx.x - blocks_of_a);
}

/// Two matrices of any sizes in one launch; the second may have no rows.
void split(const Split& a, const Split& b, bool packs_of_four) {
  const auto launch_packs = [&](auto pack) {
    const auto blocks = [&](const Split& s) {
      return s.rows == 0 ? 0 : blocks_for(s.rows * ((s.cols + pack - 1) / pack), split_threads);
    };
    launch("matmul: terms", split_kernel<pack>, blocks_for(std::int64_t{blocks(a)} + blocks(b), 1),
           split_threads, a, b, blocks(a));
  };
  if (packs_of_four)
    launch_packs(std::integral_constant<int, 4>());
  else
    launch_packs(std::integral_constant<int, 1>());
}

Tensor split_product(const Output& c, const Tensor& a, const Tensor& b) {
  // Of the nine products of two terms those that f32 would hold, side by side.
  constexpr int places = 6;
  const std::int64_t m = a.rows(), k = a.cols(), n = b.cols();
  const Tensor terms = Tensor::empty({m, places * k}, DType::bf16, a.device()),
               stacked = Tensor::empty({places * k, n}, DType::bf16, a.device());
  split({.to = rows_of<__nv_bfloat16>(terms),
         .from = const_rows_of<float>(a),
         .rows = m,
         .cols = k,
         .step = k,
         .order = order_of({0, 1, 2, 0, 1, 0}),
         .places = places},
        {.to = rows_of<__nv_bfloat16>(stacked),
         .from = const_rows_of<float>(b),
         .rows = k,
         .cols = n,
         .step = k * n,
         .order = order_of({0, 0, 0, 1, 1, 2}),
         .places = places},
        k % 4 == 0 && n % 4 == 0 && packs_aligned(a, b));
  product(c, terms, false, stacked, false);
  return terms.narrow(1, 0, terms_of_f32 * k);
}

/// Element (row, col) of the product with term i of a factor is at products[i term_step + row
/// row_step + col].
struct TermProducts {
  const float* products;
  std::int64_t term_step, row_step;
};

template <class Out, int N>
__global__ void sum_terms_kernel(RowBlocks grid, Rows<Out> c, bool add, TermProducts of) {
  for_own_pack<N>(grid, [&](std::int64_t row, std::int64_t col, std::int64_t count) {
    float sum[N] = {}, v[N];
#pragma unroll
    for (int i = terms_of_f32 - 1; i >= 0; --i) {  // the smallest first
      Pack<float, N>::load(of.products + i * of.term_step + row * of.row_step + col, count).read(v);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += v[j];
    }
    Out* const to = c.row(row) + col;
    if (add) {
      Pack<Out, N>::load(to, count).read(v);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += v[j];
    }
    Pack<Out, N>::of(sum).store(to, count);
  });
}

void sum_terms(const Output& c, const TermProducts& of) {
  const std::int64_t rows = c.to.rows(), cols = c.to.cols();
  visit_storage("matmul", c.to.dtype(), [&]<class T>(TypeTag<T>) {
    const auto sum = [&](auto pack) {
      launch_elementwise<pack>("matmul: sum of terms", sum_terms_kernel<T, pack>, rows, cols,
                               rows_of<T>(c.to), c.how == Into::add, of);
    };
    if (cols % 4 == 0 && packs_aligned(c.to))
      sum(std::integral_constant<int, 4>());
    else
      sum(std::integral_constant<int, 1>());
  });
}

void mixed_product(const Output& c, const Tensor& a, const Tensor& b) {
  const std::int64_t m = a.rows(), n = b.rows(), k = b.cols();
  const Tensor terms = Tensor::empty({terms_of_f32 * n, k}, DType::bf16, b.device()),
               products = Tensor::empty({m, terms_of_f32 * n}, DType::f32, b.device());
  split({.to = rows_of<__nv_bfloat16>(terms),
         .from = const_rows_of<float>(b),
         .rows = n,
         .cols = k,
         .step = n * k,
         .order = order_of({0, 1, 2}),
         .places = terms_of_f32},
        {}, k % 4 == 0 && packs_aligned(b));
  product({products, Into::set}, a, false, terms, true);
  sum_terms(c, {data_of<float>(products), n, terms_of_f32 * n});
}

void terms_product(const Output& c, const Tensor& terms, const Tensor& b) {
  const std::int64_t rows = c.to.rows(), cols = c.to.cols();
  const Tensor products = Tensor::empty({terms_of_f32 * rows, cols}, DType::f32, c.to.device());
  product({products, Into::set}, terms, true, b, false);
  sum_terms(c, {data_of<float>(products), rows * cols, cols});
}

bool biased_product(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor& bias) {
  visit_storage("matmul", a.dtype(), [](auto) {});
  Plan plan = plan_cache().find_or_make(c, a, false, b, true, bias);
  if (!plan.supported) return false;
  // cuBLAS reads packs of 16 bytes.
  const Tensor packs = bias.contiguous() && alignment_of(bias) >= 16 ? bias : bias.clone();
  set_bias(plan, packs);
  queue(plan, {c, Into::set}, a, b);
  return true;
}

void set_tf32(bool allowed) { tf32_allowed = allowed; }
std::int64_t workspace_so_far() { return largest_workspace; }

const Provide provided[] = {{matmul_kernel, product},
                            {tiled_product, by_tiles},
                            {cuda::mixed_product, mixed_product},
                            {cuda::split_product, split_product},
                            {cuda::terms_product, terms_product},
                            {cuda::biased_product, biased_product},
                            {allow_tf32, set_tf32},
                            {largest_product_workspace, workspace_so_far}};

}  // namespace
}  // namespace nemocube::cuda
