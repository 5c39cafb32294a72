#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/allocator.h"
#include "core/dtype.h"
#include "core/error.h"

/// Tensor: shared storage + shape + row stride.
///
/// A tensor is a stack of rows: the last dimension is contiguous, and consecutive rows (over all leading
/// dimensions in order) lie `row_stride` elements apart. Views without copies therefore cut the last
/// dimension (the parts of a projection's output) or the first one (tokens); other cuts need a copy. A meta
/// tensor has a shape and no storage, so that a model can be planned without memory.
namespace nemocube {

/// Up to six dimensions, each >= 0.
class Shape {
 public:
  static constexpr int max_dims = 6;
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const std::int64_t> dims);
  int ndim() const { return ndim_; }
  std::int64_t numel() const;
  std::int64_t operator[](int i) const { return dims_[static_cast<std::size_t>(i)]; }
  std::int64_t& operator[](int i) { return dims_[static_cast<std::size_t>(i)]; }
  std::span<const std::int64_t> dims() const { return {dims_.data(), static_cast<std::size_t>(ndim_)}; }
  friend bool operator==(const Shape& a, const Shape& b);

 private:
  std::array<std::int64_t, max_dims> dims_{};
  int ndim_ = 0;
};
std::string to_string(const Shape& shape);  ///< "[2, 3]"
inline std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << to_string(shape); }

/// A block of memory on one device, freed with its last owner.
class Storage {
 public:
  Storage(std::int64_t bytes, Device device);
  /// Borrowed memory, which `owner` keeps alive.
  Storage(void* data, std::int64_t bytes, std::shared_ptr<const void> owner);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(block_.data); }
  std::int64_t bytes() const { return bytes_; }
  bool owned() const { return owned_; }  ///< false: borrowed, perhaps read-only
  /// Gives the memory back, or takes new, uninitialised memory of the same size. In between, every tensor
  /// that shares the storage has no data. Only for owned memory.
  void release();
  void restore();
  bool released() const { return released_; }
  bool starts_as_zeros() const { return block_.zeros; }  ///< full of zeros when it was allocated

 private:
  MemoryBlock block_;
  std::int64_t bytes_ = 0;
  std::shared_ptr<const void> owner_;
  Device device_ = Device::cpu;
  bool owned_ = false;
  bool released_ = false;
};

class Tensor {
 public:
  Tensor() = default;                                                   ///< undefined
  static Tensor empty(const Shape& shape, DType dtype, Device device);  ///< uninitialised
  static Tensor zeros(const Shape& shape, DType dtype, Device device);
  static Tensor meta(const Shape& shape, DType dtype) { return empty(shape, dtype, Device::meta); }
  /// Borrows host memory, which `owner` keeps alive.
  static Tensor borrow(void* data, const Shape& shape, DType dtype, std::shared_ptr<const void> owner);
  /// A copy of `values` in host memory (Device::cpu).
  template <class T>
  static Tensor from(const std::vector<T>& values, const Shape& shape);
  static Tensor scalar(double value, DType dtype, Device device);  ///< shape []

  bool defined() const { return defined_; }
  explicit operator bool() const { return defined_; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  bool is_meta() const { return device_.is_meta(); }
  const Shape& shape() const { return shape_; }
  int ndim() const { return shape_.ndim(); }
  std::int64_t dim(int i) const;  ///< negative i counts from the end
  std::int64_t numel() const { return shape_.numel(); }
  std::int64_t bytes() const { return numel() * size_of(dtype_); }
  std::int64_t cols() const { return ndim() == 0 ? 1 : shape_[ndim() - 1]; }
  std::int64_t rows() const;  ///< product of the leading dimensions
  std::int64_t row_stride() const { return row_stride_; }
  bool contiguous() const { return row_stride_ == cols() || rows() <= 1; }

  /// Start of the data, for host code; std::logic_error that names the zone of the profile if T is not the
  /// dtype or the data is not there for host code: the tensor is undefined, meta, or on another device.
  template <class T>
  T* data() const {
    expect(dtype_of<T>() == dtype_, "tensor data wanted as ", dtype_of<T>(), ", is ", dtype_);
    if (!device_.is_host()) [[unlikely]]
      check_host_access();
    return static_cast<T*>(address());
  }
  template <class T>
  T* row(std::int64_t r) const {
    return data<T>() + r * row_stride_;
  }
  /// The same, as bytes of any dtype.
  std::byte* host_bytes() const {
    if (!device_.is_host()) [[unlikely]]
      check_host_access();
    return static_cast<std::byte*>(address());
  }
  /// Start of the data on the device of the tensor, for device code and for comparisons of places. Host code
  /// uses data() or host_bytes().
  void* address() const;
  template <class T>
  T item() const;                         ///< the value of a one-element tensor, from any device
  std::vector<double> to_vector() const;  ///< all elements in order, as f64, from any device

  /// View of `length` entries from `start` along dimension `d`. The first and the last dimension always work;
  /// std::logic_error for another dimension that would not give a stack of equally spaced rows.
  Tensor narrow(int d, std::int64_t start, std::int64_t length) const;
  Tensor select(std::int64_t index) const;  ///< entry of the first dimension, without that dimension
  /// View with another shape. One dimension may be -1: its size then follows from the others. The last
  /// dimension may change only when the tensor is contiguous.
  Tensor reshape(const Shape& shape) const;
  /// The same bits as elements of another dtype of the same size.
  Tensor bits_as(DType dtype) const;
  /// Views that cut the last dimension into parts: part i has columns[i] columns.
  std::vector<Tensor> split_last(std::span<const std::int64_t> columns) const;

  Tensor clone() const;            ///< contiguous copy
  Tensor as_contiguous() const;    ///< itself when contiguous, else a copy
  Tensor to(DType dtype) const;    ///< itself when the dtype is already right, else a converted copy
  Tensor to(Device device) const;  ///< itself when on that device already, else a contiguous copy there
  /// Same shape; converts between floating dtypes, and copies between devices. The host waits for a copy from
  /// another device to the CPU (core/host_wait.h).
  void copy_from(const Tensor& source) const;
  void fill(double value) const;
  void zero() const;
  /// True when no other tensor shares the storage and the storage is not borrowed: data may be overwritten.
  bool unique() const { return storage_ && storage_->owned() && storage_.use_count() == 1; }
  bool same_storage(const Tensor& other) const { return storage_ && storage_ == other.storage_; }
  /// Null for a meta tensor.
  const std::shared_ptr<Storage>& storage() const { return storage_; }

 private:
  void check_host_access() const;
  bool host_accessible() const;

  std::shared_ptr<Storage> storage_;
  std::int64_t offset_ = 0;  // elements
  Shape shape_;
  std::int64_t row_stride_ = 0;
  DType dtype_ = DType::f32;
  Device device_ = Device::cpu;
  bool defined_ = false;
};

/// Throws Error "what: want shape .., got .." unless the shapes are equal.
void check_shape(std::string_view what, const Tensor& tensor, const Shape& want);
/// Throws Error "what: want f32, got .." unless the dtypes are equal.
void check_dtype(std::string_view what, const Tensor& tensor, DType want);

template <class T>
Tensor Tensor::from(const std::vector<T>& values, const Shape& shape) {
  expect(static_cast<std::int64_t>(values.size()) == shape.numel(), "Tensor::from: ", values.size(),
         " values for shape ", shape);
  Tensor t = empty(shape, dtype_of<T>(), Device::cpu);
  std::copy(values.begin(), values.end(), t.data<T>());
  return t;
}

template <class T>
T Tensor::item() const {
  expect(numel() == 1, "item() of a tensor of shape ", shape_);
  if (!host_accessible()) return to(Device::cpu).item<T>();
  return *data<T>();
}

}  // namespace nemocube
