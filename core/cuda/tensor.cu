#include <algorithm>
#include <cstring>

#include "core/add_kernels.h"
#include "core/cuda/elementwise.cuh"
#include "core/cuda/graph.h"
#include "core/cuda/runtime.h"
#include "core/profile.h"

namespace nemocube::cuda {
namespace {

template <class To, class From>
__device__ To converted(From x) {
  if constexpr (std::is_same_v<To, __nv_bfloat16>)
    return __float2bfloat16_rn(static_cast<float>(x));
  else
    return static_cast<To>(static_cast<float>(x));
}

template <class To, class From>
__global__ void convert_kernel(RowBlocks grid, Rows<To> to, Rows<From> from) {
  for_own_pack<1>(grid, [&](std::int64_t r, std::int64_t c, std::int64_t) {
    to.row(r)[c] = converted<To>(from.row(r)[c]);
  });
}

template <class T>
__global__ void fill_kernel(RowBlocks grid, Rows<T> to, T value) {
  for_own_pack<1>(grid, [&](std::int64_t r, std::int64_t c, std::int64_t) { to.row(r)[c] = value; });
}

// y may be a, so that no pointer is restricted.
template <class T, class B, int N>
__global__ void add_kernel(RowBlocks grid, Rows<T> y, Rows<T> a, Rows<B> b) {
  for_own_pack<N>(grid, [&](std::int64_t r, std::int64_t c, std::int64_t count) {
    float first[N], second[N];
    Pack<T, N>::load(a.row(r) + c, count).read(first);
    Pack<B, N>::load(b.row(r) + c, count).read(second);
#pragma unroll
    for (int i = 0; i < N; ++i) first[i] += second[i];
    Pack<T, N>::of(first).store(y.row(r) + c, count);
  });
}

// Of `rows` rows, one after another in pinned memory, to the device.
void upload_rows(std::byte* to, std::int64_t to_pitch, const std::byte* from, std::int64_t from_pitch,
                 std::int64_t rows, std::int64_t row_bytes) {
  Staging staging(rows * row_bytes);
  for (std::int64_t r = 0; r < rows; ++r)
    std::memcpy(staging.data() + r * row_bytes, from + r * from_pitch, static_cast<std::size_t>(row_bytes));
  const auto width = static_cast<std::size_t>(row_bytes);
  if (rows == 1)
    NEMOCUBE_CUDA(cudaMemcpyAsync(to, staging.data(), width, cudaMemcpyHostToDevice, stream()));
  else
    NEMOCUBE_CUDA(cudaMemcpy2DAsync(to, static_cast<std::size_t>(to_pitch), staging.data(), width, width,
                                    static_cast<std::size_t>(rows), cudaMemcpyHostToDevice, stream()));
  staging.used_until(record_event(OnStream::current()));
}

// CUDA would wait for the stream before it takes the values of pageable memory. They go through pinned memory
// in pieces, so that the pool needs no block as large as the largest tensor.
void upload_bytes(const Tensor& to, const Tensor& from) {
  // A graph would upload the same memory each time, whatever is in it by then.
  refuse_in_capture(cat("values of the host go to the device, in zone ", current_zone()));
  constexpr std::int64_t piece = std::int64_t{4} << 20;
  auto* target = static_cast<std::byte*>(to.address());
  const std::byte* source = from.host_bytes();
  const std::int64_t row_bytes = to.cols() * size_of(to.dtype()), rows = to.rows();
  const std::int64_t to_pitch = to.row_stride() * size_of(to.dtype()),
                     from_pitch = from.row_stride() * size_of(from.dtype());
  const std::int64_t rows_at_once = std::max<std::int64_t>(1, piece / row_bytes);
  for (std::int64_t r = 0; r < rows; r += rows_at_once) {
    const std::int64_t count = std::min(rows_at_once, rows - r);
    for (std::int64_t b = 0; b < row_bytes; b += piece)  // one time unless a row is longer than a piece
      upload_rows(target + r * to_pitch + b, to_pitch, source + r * from_pitch + b, from_pitch, count,
                  std::min(piece, row_bytes - b));
  }
}

void copy_bytes(const Tensor& to, const Tensor& from) {
  if (from.device().is_host()) return upload_bytes(to, from);
  const auto width = static_cast<std::size_t>(to.cols() * size_of(to.dtype()));
  const auto pitch = [width](const Tensor& t) {
    return t.rows() > 1 ? static_cast<std::size_t>(t.row_stride() * size_of(t.dtype())) : width;
  };
  const auto kind = to.device().is_host() ? cudaMemcpyDeviceToHost : cudaMemcpyDeviceToDevice;
  if (to.rows() == 1)
    NEMOCUBE_CUDA(cudaMemcpyAsync(to.address(), from.address(), width, kind, stream()));
  else
    NEMOCUBE_CUDA(cudaMemcpy2DAsync(to.address(), pitch(to), from.address(), pitch(from), width,
                                    static_cast<std::size_t>(to.rows()), kind, stream()));
  if (kind == cudaMemcpyDeviceToHost) NEMOCUBE_CUDA(cudaStreamSynchronize(stream()));
}

void convert(const Tensor& to, const Tensor& from) {
  visit_float("copy on cuda", to.dtype(), [&]<class To>(TypeTag<To>) {
    visit_float("copy on cuda", from.dtype(), [&]<class From>(TypeTag<From>) {
      launch_elementwise<1>("copy", convert_kernel<device_t<To>, device_t<From>>, to.rows(), to.cols(),
                            rows_of<device_t<To>>(to), rows_of<device_t<From>>(from));
    });
  });
}

void copy_tensor(const Tensor& to_any, const Tensor& from_any) {
  const bool one_row = all_contiguous(to_any, from_any);
  const Tensor to = as_one_row(to_any, one_row), from = as_one_row(from_any, one_row);
  if (to.dtype() == from.dtype())
    copy_bytes(to, from);
  else if (to.device() == from.device())
    convert(to, from);
  else if (from.device().is_host())
    copy_bytes(to, from.to(to.dtype()));
  else
    to.copy_from(from.to(Device::cpu));
}

template <class Bits>
void fill_bits(const Tensor& t, const void* value) {
  Bits bits;
  std::memcpy(&bits, value, sizeof bits);
  const Rows<Bits> rows{static_cast<Bits*>(t.address()), t.row_stride()};
  launch_elementwise<1>("fill", fill_kernel<Bits>, t.rows(), t.cols(), rows, bits);
}

void fill_tensor(const Tensor& any, double value) {
  const Tensor t = as_one_row(any, any.contiguous());
  visit_any(t.dtype(), [&]<class T>(TypeTag<T>) {
    const T element = static_cast<T>(value);
    if constexpr (sizeof(T) == 1)
      fill_bits<std::uint8_t>(t, &element);
    else if constexpr (sizeof(T) == 2)
      fill_bits<std::uint16_t>(t, &element);
    else if constexpr (sizeof(T) == 4)
      fill_bits<std::uint32_t>(t, &element);
    else
      fill_bits<std::uint64_t>(t, &element);
  });
}

template <class T, class B, int N>
void add_packs(const Tensor& y, const Tensor& a, const Tensor& b) {
  launch_elementwise<N>("sum", add_kernel<T, B, N>, y.rows(), y.cols(), rows_of<T>(y), rows_of<T>(a),
                        rows_of<B>(b));
}

// Where f64 or i64 takes part: sums of a step, which are small.
template <class T, class B>
__global__ void add_wide_kernel(RowBlocks grid, Rows<T> y, Rows<T> a, Rows<B> b) {
  using Sum = std::conditional_t<std::is_same_v<T, __nv_bfloat16>, float, T>;
  const auto as_sum = [](auto x) {
    if constexpr (std::is_same_v<decltype(x), __nv_bfloat16>)
      return static_cast<Sum>(to_float(x));
    else
      return static_cast<Sum>(x);
  };
  for_own_pack<1>(grid, [&](std::int64_t r, std::int64_t c, std::int64_t) {
    const Sum sum = as_sum(a.row(r)[c]) + as_sum(b.row(r)[c]);
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
      y.row(r)[c] = rounded<T>(sum);
    else
      y.row(r)[c] = sum;
  });
}

template <class T, class B>
void add_wide(const Tensor& y, const Tensor& a, const Tensor& b) {
  launch_elementwise<1>("sum", add_wide_kernel<T, B>, y.rows(), y.cols(), rows_of<T>(y), rows_of<T>(a),
                        rows_of<B>(b));
}

void add(const Tensor& y_any, const Tensor& a_any, const Tensor& b_any) {
  const bool one_row = all_contiguous(y_any, a_any, b_any);
  const Tensor y = as_one_row(y_any, one_row), a = as_one_row(a_any, one_row), b = as_one_row(b_any, one_row);
  if (y.dtype() == DType::i64) return add_wide<std::int64_t, std::int64_t>(y, a, b);
  if (y.dtype() == DType::f64)
    return visit_float("sum", b.dtype(),
                       [&]<class B>(TypeTag<B>) { add_wide<double, device_t<B>>(y, a, b); });
  visit_storage("sum", y.dtype(), [&]<class T>(TypeTag<T>) {
    if (b.dtype() == DType::f64) return add_wide<T, double>(y, a, b);
    visit_storage("sum", b.dtype(), [&]<class B>(TypeTag<B>) {
      constexpr int whole = std::min(whole_pack<T>, whole_pack<B>);
      if (rows_aligned(y, a, b))
        add_packs<T, B, whole>(y, a, b);
      else
        add_packs<T, B, 1>(y, a, b);
    });
  });
}

const Provide provided[] = {{copy, copy_tensor}, {fill, fill_tensor}, {add_elements_kernel, add}};

}  // namespace
}  // namespace nemocube::cuda
