#include "blas/lt_descriptors.h"

#include <cstring>
#include <new>
#include <span>
#include <string>

#include "blas/refuse.h"

using namespace emulator::blas;

namespace {

/// Where an attribute lies in its descriptor.
struct Attribute {
  int number;
  std::size_t offset, bytes;
};

#define FIELD(number, D, member) \
  { number, offsetof(D, member), sizeof(D::member) }
#define DESC(number, member) FIELD(CUBLASLT_MATMUL_DESC_##number, MatmulDescriptor, member)
#define LAYOUT(number, member) FIELD(CUBLASLT_MATRIX_LAYOUT_##number, LayoutDescriptor, member)
#define TRANSFORM(number, member) FIELD(CUBLASLT_MATRIX_TRANSFORM_DESC_##number, TransformDescriptor, member)
#define PREFERENCE(number, member) FIELD(CUBLASLT_MATMUL_PREF_##number, PreferenceDescriptor, member)
#define ALGORITHM(number, member) FIELD(CUBLASLT_ALGO_CONFIG_##number, Algorithm, member)

constexpr Attribute matmul_attributes[] = {
    DESC(COMPUTE_TYPE, compute_type),
    DESC(SCALE_TYPE, scale_type),
    DESC(POINTER_MODE, pointer_mode),
    DESC(TRANSA, transa),
    DESC(TRANSB, transb),
    DESC(TRANSC, transc),
    DESC(FILL_MODE, fill_mode),
    DESC(EPILOGUE, epilogue),
    DESC(BIAS_POINTER, bias),
    DESC(BIAS_BATCH_STRIDE, bias_batch_stride),
    DESC(EPILOGUE_AUX_POINTER, auxiliary),
    DESC(EPILOGUE_AUX_LD, auxiliary_ld),
    DESC(EPILOGUE_AUX_BATCH_STRIDE, auxiliary_batch_stride),
    DESC(ALPHA_VECTOR_BATCH_STRIDE, alpha_batch_stride),
    DESC(SM_COUNT_TARGET, sm_count_target),
    DESC(A_SCALE_POINTER, a_scale),
    DESC(B_SCALE_POINTER, b_scale),
    DESC(C_SCALE_POINTER, c_scale),
    DESC(D_SCALE_POINTER, d_scale),
    DESC(AMAX_D_POINTER, amax_d),
    DESC(EPILOGUE_AUX_DATA_TYPE, auxiliary_type),
    DESC(EPILOGUE_AUX_SCALE_POINTER, auxiliary_scale),
    DESC(EPILOGUE_AUX_AMAX_POINTER, auxiliary_amax),
    DESC(FAST_ACCUM, fast_accumulation),
    DESC(BIAS_DATA_TYPE, bias_type),
    DESC(A_SCALE_MODE, a_scale_mode),
    DESC(B_SCALE_MODE, b_scale_mode),
    DESC(C_SCALE_MODE, c_scale_mode),
    DESC(D_SCALE_MODE, d_scale_mode),
    DESC(EPILOGUE_AUX_SCALE_MODE, auxiliary_scale_mode),
    DESC(D_OUT_SCALE_POINTER, d_out_scale),
    DESC(D_OUT_SCALE_MODE, d_out_scale_mode),
    DESC(EMULATION_DESCRIPTOR, emulation),
};
constexpr Attribute layout_attributes[] = {
    LAYOUT(TYPE, type),
    LAYOUT(ORDER, order),
    LAYOUT(ROWS, rows),
    LAYOUT(COLS, columns),
    LAYOUT(LD, ld),
    LAYOUT(BATCH_COUNT, batch_count),
    LAYOUT(STRIDED_BATCH_OFFSET, batch_stride),
    LAYOUT(PLANE_OFFSET, plane_offset),
    LAYOUT(BATCH_MODE, batch_mode),
};
constexpr Attribute transform_attributes[] = {
    TRANSFORM(SCALE_TYPE, scale_type),
    TRANSFORM(POINTER_MODE, pointer_mode),
    TRANSFORM(TRANSA, transa),
    TRANSFORM(TRANSB, transb),
};
constexpr Attribute preference_attributes[] = {
    PREFERENCE(SEARCH_MODE, search_mode),
    PREFERENCE(MAX_WORKSPACE_BYTES, max_workspace_bytes),
    PREFERENCE(REDUCTION_SCHEME_MASK, reduction_mask),
    PREFERENCE(MIN_ALIGNMENT_A_BYTES, alignment_a),
    PREFERENCE(MIN_ALIGNMENT_B_BYTES, alignment_b),
    PREFERENCE(MIN_ALIGNMENT_C_BYTES, alignment_c),
    PREFERENCE(MIN_ALIGNMENT_D_BYTES, alignment_d),
    PREFERENCE(MAX_WAVES_COUNT, max_waves),
    PREFERENCE(IMPL_MASK, implementation_mask),
};
constexpr Attribute algorithm_attributes[] = {
    ALGORITHM(ID, id),
    ALGORITHM(TILE_ID, tile),
    ALGORITHM(SPLITK_NUM, split_k),
    ALGORITHM(REDUCTION_SCHEME, reduction_scheme),
    ALGORITHM(CTA_SWIZZLING, swizzling),
    ALGORITHM(CUSTOM_OPTION, custom_option),
    ALGORITHM(STAGES_ID, stages),
    ALGORITHM(INNER_SHAPE_ID, inner_shape),
    ALGORITHM(CLUSTER_SHAPE_ID, cluster_shape),
};

const Attribute* find(std::span<const Attribute> attributes, int number) {
  for (const Attribute& attribute : attributes) {
    if (attribute.number == number) return &attribute;
  }
  return nullptr;
}

cublasStatus_t set(std::span<const Attribute> attributes, void* descriptor, int number, const void* value,
                   std::size_t bytes) {
  const Attribute* const attribute = find(attributes, number);
  if (!attribute) return invalid("set: unknown attribute " + std::to_string(number));
  if (attribute->bytes != bytes)
    return invalid("set: attribute " + std::to_string(number) + " has " + std::to_string(attribute->bytes) +
                   " bytes, not " + std::to_string(bytes));
  if (!descriptor || !value) return invalid("set: the descriptor or the value is null");
  std::memcpy(static_cast<std::byte*>(descriptor) + attribute->offset, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

/// With a size of 0 only the attribute's size is told.
cublasStatus_t get(std::span<const Attribute> attributes, const void* descriptor, int number, void* value,
                   std::size_t bytes, std::size_t* written) {
  const Attribute* const attribute = find(attributes, number);
  if (!attribute) return invalid("get: unknown attribute " + std::to_string(number));
  if (!descriptor || (bytes == 0 && !written))
    return invalid("get: the descriptor is null, or neither value nor size is wanted");
  if (written) *written = attribute->bytes;
  if (bytes == 0) return CUBLAS_STATUS_SUCCESS;
  if (!value || bytes < attribute->bytes)
    return invalid("get: attribute " + std::to_string(number) + " needs " + std::to_string(attribute->bytes) +
                   " bytes");
  std::memcpy(value, static_cast<const std::byte*>(descriptor) + attribute->offset, attribute->bytes);
  return CUBLAS_STATUS_SUCCESS;
}

/// Puts a descriptor into memory that the program gives.
template <class D, class Opaque>
cublasStatus_t init(Opaque* opaque, std::size_t bytes, const D& descriptor) {
  if (!opaque || bytes < sizeof(D)) return invalid("init: the descriptor is null or too small");
  new (opaque) D(descriptor);
  return CUBLAS_STATUS_SUCCESS;
}

template <class D, class Opaque>
cublasStatus_t create(Opaque** handle, const D& descriptor) {
  if (!handle) return invalid("create: the descriptor is null");
  *handle = new Opaque{};
  return init(*handle, sizeof(Opaque), descriptor);
}

template <class Opaque>
cublasStatus_t destroy(Opaque* opaque) {
  delete opaque;
  return CUBLAS_STATUS_SUCCESS;
}

MatmulDescriptor matmul(cublasComputeType_t compute, cudaDataType_t scale) {
  MatmulDescriptor descriptor;
  descriptor.compute_type = compute;
  descriptor.scale_type = scale;
  return descriptor;
}

LayoutDescriptor layout(cudaDataType type, std::uint64_t rows, std::uint64_t columns, std::int64_t ld) {
  LayoutDescriptor descriptor;
  descriptor.type = type;
  descriptor.rows = rows;
  descriptor.columns = columns;
  descriptor.ld = ld;
  return descriptor;
}

TransformDescriptor transform(cudaDataType scale) {
  TransformDescriptor descriptor;
  descriptor.scale_type = scale;
  return descriptor;
}

}  // namespace

#define EMULATOR_ATTRIBUTES(NAME, ATTRIBUTE, HANDLE, TABLE)                                                  \
  cublasStatus_t cublasLt##NAME##Destroy(HANDLE handle) { return destroy(handle); }                          \
  cublasStatus_t cublasLt##NAME##SetAttribute(HANDLE handle, ATTRIBUTE attribute, const void* value,         \
                                              size_t bytes) {                                                \
    return set(TABLE, handle, attribute, value, bytes);                                                      \
  }                                                                                                          \
  cublasStatus_t cublasLt##NAME##GetAttribute(HANDLE handle, ATTRIBUTE attribute, void* value, size_t bytes, \
                                              size_t* written) {                                             \
    return get(TABLE, handle, attribute, value, bytes, written);                                             \
  }

extern "C" {

EMULATOR_ATTRIBUTES(MatmulDesc, cublasLtMatmulDescAttributes_t, cublasLtMatmulDesc_t, matmul_attributes)
EMULATOR_ATTRIBUTES(MatrixLayout, cublasLtMatrixLayoutAttribute_t, cublasLtMatrixLayout_t, layout_attributes)
EMULATOR_ATTRIBUTES(MatrixTransformDesc, cublasLtMatrixTransformDescAttributes_t,
                    cublasLtMatrixTransformDesc_t, transform_attributes)
EMULATOR_ATTRIBUTES(MatmulPreference, cublasLtMatmulPreferenceAttributes_t, cublasLtMatmulPreference_t,
                    preference_attributes)

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t desc, size_t bytes,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
  return init(desc, bytes, matmul(compute, scale));
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return create(desc, matmul(compute, scale));
}
cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t desc, size_t bytes, cudaDataType type,
                                                 uint64_t rows, uint64_t columns, int64_t ld) {
  return init(desc, bytes, layout(type, rows, columns, ld));
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* desc, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
  return create(desc, layout(type, rows, columns, ld));
}
cublasStatus_t cublasLtMatrixTransformDescInit_internal(cublasLtMatrixTransformDesc_t desc, size_t bytes,
                                                        cudaDataType scale) {
  return init(desc, bytes, transform(scale));
}
cublasStatus_t cublasLtMatrixTransformDescCreate(cublasLtMatrixTransformDesc_t* desc, cudaDataType scale) {
  return create(desc, transform(scale));
}
cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t desc, size_t bytes) {
  return init(desc, bytes, PreferenceDescriptor{});
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* desc) {
  return create(desc, PreferenceDescriptor{});
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  return set(algorithm_attributes, algorithm, attribute, value, bytes);
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t bytes, size_t* written) {
  return get(algorithm_attributes, algorithm, attribute, value, bytes, written);
}
}
