#pragma once
#include <cuda_bf16.h>

#include <cstdint>
#include <string>
#include <type_traits>

#include "core/tensor.h"

/// Tensors as kernels see them.
namespace nemocube::cuda {

/// The type of device code for the elements of a dtype.
template <class T>
using device_t = std::conditional_t<std::is_same_v<T, bf16>, __nv_bfloat16, T>;

/// Calls fn(TypeTag<T>()) for the T of device code behind f32 or bf16. Throws Error naming `op` for another
/// dtype: there is no f64 on CUDA devices, whose gradient checks are those of the CPU.
template <class Fn>
void visit_storage(std::string_view op, DType dtype, Fn&& fn) {
  visit_dtype<float, bf16>(cat(op, " on cuda"), dtype,
                           [&]<class T>(TypeTag<T>) { fn(TypeTag<device_t<T>>()); });
}

/// The rows of a tensor. `start` is null for a tensor that is not defined.
template <class T>
struct Rows {
  T* start = nullptr;
  std::int64_t stride = 0;  // elements
  __host__ __device__ explicit operator bool() const { return start != nullptr; }
  __device__ T* row(std::int64_t r) const { return start + r * stride; }
};

/// std::logic_error unless `t` is on the device and T is the type of its dtype.
template <class T>
T* data_of(const Tensor& t) {
  using Stored = std::conditional_t<std::is_same_v<T, __nv_bfloat16>, bf16, T>;
  expect(t.device().is_cuda() && t.dtype() == dtype_of<Stored>(), "a CUDA kernel wants ", dtype_of<Stored>(),
         " on cuda, got ", t.dtype(), " on ", t.device());
  return static_cast<T*>(t.address());
}
template <class T>
Rows<T> rows_of(const Tensor& t) {
  if (!t.defined()) return {};
  return {data_of<T>(t), t.rows() > 1 ? t.row_stride() : 0};
}

/// Whether every row of the tensors that are defined starts at a multiple of 16 bytes.
template <class... Tensors>
bool rows_aligned(const Tensors&... tensors) {
  const auto aligned = [](const Tensor& t) {
    if (!t.defined()) return true;
    return reinterpret_cast<std::uintptr_t>(t.address()) % 16 == 0 &&
           (t.rows() <= 1 || t.row_stride() * size_of(t.dtype()) % 16 == 0);
  };
  return (aligned(tensors) && ...);
}

/// Blocks of `size` that hold `count`; Error for more than a grid can have.
inline unsigned blocks_for(std::int64_t count, std::int64_t size) {
  const std::int64_t blocks = (count + size - 1) / size;
  require(blocks <= 0x7fffffff, "a CUDA kernel would need ", blocks, " blocks; at most 2147483647");
  return static_cast<unsigned>(blocks);
}

}  // namespace nemocube::cuda
