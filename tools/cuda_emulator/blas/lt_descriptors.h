#pragma once
#include <cublasLt.h>

#include <cstdint>

/// What the opaque structs of cublasLt hold. Fields are set and read by attribute number; the defaults are those of cublasLt.h.
namespace emulator::blas {

struct MatmulDescriptor {
  std::int32_t compute_type = CUBLAS_COMPUTE_32F, scale_type = CUDA_R_32F;
  std::int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  std::int32_t transa = CUBLAS_OP_N, transb = CUBLAS_OP_N, transc = CUBLAS_OP_N;
  std::int32_t fill_mode = CUBLAS_FILL_MODE_FULL;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
  std::int64_t bias_batch_stride = 0;
  void* auxiliary = nullptr;
  std::int64_t auxiliary_ld = 0, auxiliary_batch_stride = 0;
  std::int64_t alpha_batch_stride = 0;
  void *a_scale = nullptr, *b_scale = nullptr, *c_scale = nullptr, *d_scale = nullptr, *amax_d = nullptr;
  void *auxiliary_scale = nullptr, *auxiliary_amax = nullptr, *d_out_scale = nullptr, *emulation = nullptr;
  std::int32_t sm_count_target = 0;
  std::int32_t auxiliary_type = -1, bias_type = -1;  ///< -1: the type of D
  std::int32_t a_scale_mode = 0, b_scale_mode = 0, c_scale_mode = 0, d_scale_mode = 0,
               auxiliary_scale_mode = 0, d_out_scale_mode = 0;
  std::int8_t fast_accumulation = 0;
};
static_assert(sizeof(MatmulDescriptor) <= sizeof(cublasLtMatmulDescOpaque_t));

struct LayoutDescriptor {
  std::int32_t type = CUDA_R_32F, order = CUBLASLT_ORDER_COL;
  std::uint64_t rows = 0, columns = 0;
  std::int64_t ld = 0;
  std::int32_t batch_count = 1;
  std::uint32_t batch_mode = CUBLASLT_BATCH_MODE_STRIDED;
  std::int64_t batch_stride = 0, plane_offset = 0;  ///< elements, bytes
};
static_assert(sizeof(LayoutDescriptor) <= sizeof(cublasLtMatrixLayoutOpaque_t));

struct TransformDescriptor {
  std::int32_t scale_type = CUDA_R_32F, pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  std::int32_t transa = CUBLAS_OP_N, transb = CUBLAS_OP_N;
};
static_assert(sizeof(TransformDescriptor) <= sizeof(cublasLtMatrixTransformDescOpaque_t));

struct PreferenceDescriptor {
  std::uint32_t search_mode = CUBLASLT_SEARCH_BEST_FIT, reduction_mask = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint64_t max_workspace_bytes = 0, implementation_mask = ~std::uint64_t{0};
  std::uint32_t alignment_a = 256, alignment_b = 256, alignment_c = 256, alignment_d = 256;
  float max_waves = 0;
};
static_assert(sizeof(PreferenceDescriptor) <= sizeof(cublasLtMatmulPreferenceOpaque_t));

/// The emulator has one way to compute a product; what programs configure is kept and has no effect.
struct Algorithm {
  std::int32_t id = 0;
  std::uint32_t tile = 0;
  std::int32_t split_k = 1;
  std::uint32_t reduction_scheme = 0, swizzling = 0, custom_option = 0, stages = 0;
  std::uint16_t inner_shape = 0, cluster_shape = 0;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

/// A descriptor inside of its opaque struct.
template <class D, class Opaque>
D& inside(Opaque* opaque) {
  return *reinterpret_cast<D*>(opaque);
}
template <class D, class Opaque>
const D& inside(const Opaque* opaque) {
  return *reinterpret_cast<const D*>(opaque);
}

}  // namespace emulator::blas
