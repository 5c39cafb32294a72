#include "core/tensor.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "core/allocation_owner.h"
#include "core/cuda/runtime.h"
#include "core/guard_device.h"
#include "core/host_wait.h"
#include "core/parallel_for.h"
#include "core/profile.h"

namespace nemocube {

Shape::Shape(std::span<const std::int64_t> dims) : ndim_(static_cast<int>(dims.size())) {
  expect(dims.size() <= max_dims, "shape with ", dims.size(), " dimensions; at most ", max_dims);
  std::copy(dims.begin(), dims.end(), dims_.begin());
}

std::int64_t Shape::numel() const {
  std::int64_t n = 1;
  bool overflow = false;
  for (std::int64_t d : dims()) overflow |= __builtin_mul_overflow(n, d, &n);
  require(!overflow, "shape ", *this, " has more elements than 64 bits can count");
  return n;
}

bool operator==(const Shape& a, const Shape& b) { return std::ranges::equal(a.dims(), b.dims()); }

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.ndim(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

Storage::Storage(std::int64_t bytes, Device device) : bytes_(bytes), device_(device), owned_(true) {
  block_ = allocator(device).allocate(bytes);
}

Storage::Storage(void* data, std::int64_t bytes, std::shared_ptr<const void> owner)
    : block_{data, bytes, false}, bytes_(bytes), owner_(std::move(owner)) {}

Storage::~Storage() {
  if (owned_ && !released_) allocator(device_).free(block_);
}

void Storage::release() {
  expect(owned_, "release of borrowed memory");
  if (released_) return;
  allocator(device_).free(block_);
  block_ = {.owner = block_.owner};
  released_ = true;
}

void Storage::restore() {
  if (!released_) return;
  const AllocationOwner owner(block_.owner);
  block_ = allocator(device_).allocate(bytes_);
  block_.zeros = false;  // the promise holds for a new tensor only
  released_ = false;
}

Tensor Tensor::empty(const Shape& shape, DType dtype, Device device) {
  for (std::int64_t d : shape.dims()) expect(d >= 0, "negative dimension in ", shape);
  Tensor t;
  t.defined_ = true;
  t.shape_ = shape;
  t.dtype_ = dtype;
  t.device_ = device;
  t.row_stride_ = t.cols();
  if (!device.is_meta()) t.storage_ = std::make_shared<Storage>(t.bytes(), device);
  return t;
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, Device device) {
  Tensor t = empty(shape, dtype, device);
  if (!t.is_meta() && !t.storage_->starts_as_zeros()) t.zero();
  return t;
}

Tensor Tensor::borrow(void* data, const Shape& shape, DType dtype, std::shared_ptr<const void> owner) {
  Tensor t = empty(shape, dtype, Device::meta);
  t.device_ = Device::cpu;
  t.storage_ = std::make_shared<Storage>(data, t.bytes(), std::move(owner));
  return t;
}

Tensor Tensor::scalar(double value, DType dtype, Device device) {
  Tensor t = empty({}, dtype, device);
  t.fill(value);
  return t;
}

std::int64_t Tensor::dim(int i) const {
  const int d = i < 0 ? i + ndim() : i;
  expect(d >= 0 && d < ndim(), "dimension ", i, " of a tensor of shape ", shape_);
  return shape_[d];
}

std::int64_t Tensor::rows() const {
  std::int64_t n = 1;
  for (int i = 0; i + 1 < ndim(); ++i) n *= shape_[i];
  return n;
}

bool Tensor::host_accessible() const {
  return device_.is_host() || (device_.is_guard() && guard::is_opened_here());
}

void Tensor::check_host_access() const {
  expect(is_meta() || (device_.is_guard() && guard::is_open()), "tensor data of shape ", shape_,
         " wanted in host memory, is on ", device_, ", in zone ", current_zone());
}

void* Tensor::address() const {
  expect(defined_, "data of an undefined tensor");
  expect(storage_ != nullptr, "data of a meta tensor of shape ", shape_);
  expect(!storage_->released(), "data of a tensor of shape ", shape_, " whose memory was given back");
  if (!storage_->data()) return nullptr;
  std::byte* const at = storage_->data() + offset_ * size_of(dtype_);
  return device_.is_guard() && guard::is_open() ? guard::opened_address(at) : at;
}

Tensor Tensor::narrow(int d, std::int64_t start, std::int64_t length) const {
  if (d < 0) d += ndim();
  expect(d >= 0 && d < ndim(), "narrow along dimension ", d, " of ", shape_);
  expect(start >= 0 && length >= 0 && start + length <= shape_[d], "narrow [", start, ", ", start + length,
         ") of dimension ", d, " of ", shape_);
  Tensor t = *this;
  t.shape_[d] = length;
  if (d == ndim() - 1) {
    t.offset_ += start;
    if (ndim() == 1) t.row_stride_ = length;
    return t;
  }
  std::int64_t outer = 1, inner_rows = 1;
  for (int i = 0; i < d; ++i) outer *= shape_[i];
  for (int i = d + 1; i + 1 < ndim(); ++i) inner_rows *= shape_[i];
  // The kept rows are consecutive when there is one outer entry, and evenly spaced when each outer entry
  // keeps one row.
  if (outer > 1 && length * inner_rows != 1 && length != shape_[d])
    expect(false, "narrow along dimension ", d, " of ", shape_, " is not a stack of rows; copy instead");
  t.offset_ += start * inner_rows * row_stride_;
  if (outer > 1 && length != shape_[d]) t.row_stride_ = shape_[d] * inner_rows * row_stride_;
  return t;
}

Tensor Tensor::select(std::int64_t index) const {
  expect(ndim() >= 1, "select from a scalar");
  const Tensor one = narrow(0, index, 1);
  const auto rest = shape_.dims().subspan(1);
  return one.reshape(Shape(rest));
}

Tensor Tensor::reshape(const Shape& wanted) const {
  Shape shape = wanted;
  std::int64_t known = 1;
  int open = -1;
  for (int i = 0; i < shape.ndim(); ++i) {
    if (shape[i] == -1)
      open = i;
    else
      known *= shape[i];
  }
  if (open >= 0) shape[open] = known == 0 ? 0 : numel() / known;
  expect(shape.numel() == numel(), "reshape of ", shape_, " to ", wanted);
  Tensor t = *this;
  t.shape_ = shape;
  if (t.cols() != cols() || shape.ndim() == 0) {
    expect(contiguous(), "reshape of strided ", shape_, " to ", wanted, " would change its rows; copy first");
    t.row_stride_ = t.cols();
  }
  return t;
}

Tensor Tensor::bits_as(DType dtype) const {
  expect(size_of(dtype) == size_of(dtype_), "bits of ", dtype_, " as ", dtype);
  Tensor t = *this;
  t.dtype_ = dtype;
  return t;
}

std::vector<Tensor> Tensor::split_last(std::span<const std::int64_t> columns) const {
  std::vector<Tensor> parts;
  std::int64_t start = 0;
  for (std::int64_t count : columns) {
    parts.push_back(narrow(-1, start, count));
    start += count;
  }
  expect(start == cols(), "split into ", start, " columns, the tensor has ", cols());
  return parts;
}

Tensor Tensor::clone() const {
  Tensor t = empty(shape_, dtype_, device_);
  if (!is_meta()) t.copy_from(*this);
  return t;
}

Tensor Tensor::as_contiguous() const { return contiguous() ? *this : clone(); }

Tensor Tensor::to(DType dtype) const {
  if (dtype == dtype_) return *this;
  Tensor t = empty(shape_, dtype, device_);
  if (!is_meta()) t.copy_from(*this);
  return t;
}

Tensor Tensor::to(Device device) const {
  if (device == device_) return *this;
  Tensor t = empty(shape_, dtype_, device);
  t.copy_from(*this);
  return t;
}

namespace {

struct OpenedIf {
  explicit OpenedIf(bool guarded) {
    if (guarded) opened.emplace();
  }
  std::optional<guard::Opened> opened;
};

template <class To, class From>
void convert_rows(const Tensor& to, const Tensor& from) {
  const std::int64_t cols = to.cols();
  To* to_data = to.data<To>();
  const From* from_data = from.data<From>();
  parallel_for(to.rows(), 1 + 16384 / (cols + 1), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      To* __restrict y = to_data + r * to.row_stride();
      const From* __restrict x = from_data + r * from.row_stride();
      for (std::int64_t c = 0; c < cols; ++c) y[c] = static_cast<To>(x[c]);
    }
  });
}

// Calls fn(first, count) for the parts of a large tensor's elements: a multiple of `slice`, and the rest.
constexpr std::int64_t slice = 16384;
template <class Fn>
void in_two_parts(std::int64_t elements, Fn&& fn) {
  const std::int64_t rest = elements % slice;
  fn(0, elements - rest);
  fn(elements - rest, rest);
}
bool is_uneven(const Tensor& t) { return t.contiguous() && t.numel() > slice && t.numel() % slice != 0; }
// A large contiguous tensor as rows of one fixed length, so that threads can share the work for any shape.
Tensor flat_rows(const Tensor& t) {
  if (t.contiguous() && t.numel() > slice && t.numel() % slice == 0) return t.reshape({-1, slice});
  return t;
}
}  // namespace

namespace {

/// The data of both can be touched.
void copy_on_host(Tensor to, Tensor from) {
  if (to.contiguous() && from.contiguous()) {
    if (is_uneven(to)) {
      to = to.reshape({-1});
      from = from.reshape({-1});
      return in_two_parts(to.numel(), [&](std::int64_t first, std::int64_t count) {
        copy_on_host(to.narrow(0, first, count), from.narrow(0, first, count));
      });
    }
    to = flat_rows(to);
    from = flat_rows(from);
  }
  if (to.dtype() == from.dtype()) {
    const auto row_bytes = static_cast<std::size_t>(to.cols() * size_of(to.dtype()));
    auto* y = to.host_bytes();
    const std::byte* x = from.host_bytes();
    const std::int64_t y_step = to.row_stride() * size_of(to.dtype()),
                       x_step = from.row_stride() * size_of(to.dtype());
    parallel_for(to.rows(), 1 + 65536 / static_cast<std::int64_t>(row_bytes + 1),
                 [&](std::int64_t b, std::int64_t e) {
                   for (std::int64_t r = b; r < e; ++r)
                     std::memcpy(y + r * y_step, x + r * x_step, row_bytes);
                 });
    return;
  }
  visit_float("copy", to.dtype(), [&]<class To>(TypeTag<To>) {
    visit_float("copy", from.dtype(), [&]<class From>(TypeTag<From>) { convert_rows<To, From>(to, from); });
  });
}

}  // namespace

void Tensor::copy_from(const Tensor& source) const {
  expect(shape_ == source.shape_, "copy of ", source.shape_, " to ", shape_);
  if (numel() == 0) return;
  if (device_.is_host() && !source.host_accessible()) count_host_wait();
  if (device_.is_cuda() || source.device_.is_cuda()) return cuda::copy(*this, source);
  if (device_.is_planned()) return;
  if (source.device_.is_planned()) return zero();
  const OpenedIf opened(device_.is_guard() || source.device_.is_guard());
  copy_on_host(*this, source);
}

void Tensor::fill(double value) const {
  if (numel() == 0 || device_.is_planned()) return;
  if (device_.is_cuda()) return cuda::fill(*this, value);
  const OpenedIf opened(device_.is_guard());
  visit_any(dtype_, [&]<class T>(TypeTag<T>) {
    for (std::int64_t r = 0; r < rows(); ++r) std::fill_n(row<T>(r), cols(), static_cast<T>(value));
  });
}

void Tensor::zero() const {
  if (numel() == 0 || device_.is_planned()) return;
  if (device_.is_cuda()) return cuda::fill(*this, 0);
  const OpenedIf opened(device_.is_guard());
  const Tensor t = flat_rows(*this);
  const auto row_bytes = static_cast<std::size_t>(t.cols() * size_of(dtype_));
  auto* y = t.host_bytes();
  const std::int64_t step = t.row_stride() * size_of(dtype_);
  parallel_for(t.rows(), 1 + 65536 / static_cast<std::int64_t>(row_bytes + 1),
               [&](std::int64_t b, std::int64_t e) {
                 for (std::int64_t r = b; r < e; ++r) std::memset(y + r * step, 0, row_bytes);
               });
}

std::vector<double> Tensor::to_vector() const {
  if (!host_accessible()) return to(Device::cpu).to_vector();
  std::vector<double> out;
  out.reserve(static_cast<std::size_t>(numel()));
  if (numel() == 0) return out;
  visit_any(dtype_, [&]<class T>(TypeTag<T>) {
    for (std::int64_t r = 0; r < rows(); ++r)
      for (std::int64_t c = 0; c < cols(); ++c) out.push_back(static_cast<double>(row<T>(r)[c]));
  });
  return out;
}

void check_shape(std::string_view what, const Tensor& tensor, const Shape& want) {
  require(tensor.defined(), what, ": want shape ", want, ", got no tensor");
  require(tensor.shape() == want, what, ": want shape ", want, ", got ", tensor.shape());
}

void check_dtype(std::string_view what, const Tensor& tensor, DType want) {
  require(tensor.defined(), what, ": want ", want, ", got no tensor");
  require(tensor.dtype() == want, what, ": want ", want, ", got ", tensor.dtype());
}

}  // namespace nemocube
