#include "data/peft/stack_layout.h"

#include <array>

namespace nemocube {
namespace {

/// Dimension i of the result is dimension `order[i]` of `from`, which has three.
Tensor permuted(const Tensor& from, const std::array<std::size_t, 3>& order) {
  const std::array<std::int64_t, 3> sizes{from.dim(0), from.dim(1), from.dim(2)},
      strides{from.dim(1) * from.dim(2), from.dim(2), 1};
  const std::int64_t rows = sizes[order[0]], middle = sizes[order[1]], cols = sizes[order[2]];
  const Tensor to = Tensor::empty({rows, middle, cols}, from.dtype(), from.device());
  if (from.is_meta()) return to;
  visit_any(from.dtype(), [&]<class T>(TypeTag<T>) {
    const T* read = from.data<T>();
    T* write = to.data<T>();
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < middle; ++j)
        for (std::int64_t k = 0; k < cols; ++k)
          *write++ = read[i * strides[order[0]] + j * strides[order[1]] + k * strides[order[2]]];
  });
  return to;
}
}  // namespace

Tensor split_rows(const Tensor& a, std::int64_t experts) {
  return a.as_contiguous().reshape({experts, a.dim(0) / experts, a.dim(1)});
}

Tensor split_columns(const Tensor& b, std::int64_t experts) {
  return permuted(b.as_contiguous().reshape({b.dim(0), b.dim(1) / experts, experts}), {2, 0, 1});
}

Tensor join_rows(const Tensor& each) {
  return each.as_contiguous().reshape({each.dim(0) * each.dim(1), each.dim(2)});
}

Tensor join_columns(const Tensor& each) {
  return permuted(each.as_contiguous(), {1, 2, 0}).reshape({each.dim(1), each.dim(2) * each.dim(0)});
}

Tensor transpose_each(const Tensor& each) { return permuted(each.as_contiguous(), {0, 2, 1}); }

}  // namespace nemocube
