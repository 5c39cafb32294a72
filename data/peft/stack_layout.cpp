#include "data/peft/stack_layout.h"

#include <array>

#include "core/dtype.h"

namespace nemocube {
namespace {

/// A tensor of three dimensions with its dimensions in another order: dimension i of the result is `order[i]` of `from`.
Tensor permuted(const Tensor& from, const std::array<int, 3>& order) {
  const std::array<std::int64_t, 3> strides{from.dim(1) * from.dim(2), from.dim(2), 1};
  const auto dim = [&](int i) { return from.dim(order[static_cast<std::size_t>(i)]); };
  const auto stride = [&](int i) {
    return strides[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])];
  };
  const Tensor to = Tensor::empty({dim(0), dim(1), dim(2)}, from.dtype(), from.device());
  visit_any(from.dtype(), [&]<class T>(TypeTag<T>) {
    const T* read = from.data<T>();
    T* write = to.data<T>();
    for (std::int64_t i = 0; i < dim(0); ++i)
      for (std::int64_t j = 0; j < dim(1); ++j)
        for (std::int64_t k = 0; k < dim(2); ++k)
          *write++ = read[i * stride(0) + j * stride(1) + k * stride(2)];
  });
  return to;
}

Tensor transposed(const Tensor& each) { return permuted(each, {0, 2, 1}); }

/// [n, r experts] -> [experts, n, r], and back.
Tensor experts_first(const Tensor& b, std::int64_t experts) {
  return permuted(b.as_contiguous().reshape({b.dim(0), b.dim(1) / experts, experts}), {2, 0, 1});
}
Tensor experts_last(const Tensor& b) {
  return permuted(b.as_contiguous(), {1, 2, 0}).reshape({b.dim(1), b.dim(2) * b.dim(0)});
}

Tensor all_rows(const Tensor& a) { return a.as_contiguous().reshape({a.dim(0) * a.dim(1), a.dim(2)}); }
}  // namespace

StackFactors from_stack_layout(const Tensor& a, const Tensor& b, std::int64_t experts, StackLayout layout) {
  const Tensor each_a = a.as_contiguous().reshape({experts, a.dim(0) / experts, a.dim(1)}),
               each_b = experts_first(b, experts);
  if (layout == StackLayout::current) return {each_a, each_b};
  return {transposed(each_b), transposed(each_a)};  // (B A)^T = A^T B^T
}

StackFactors to_stack_layout(const Tensor& a, const Tensor& b, StackLayout layout) {
  if (layout == StackLayout::current) return {all_rows(a), experts_last(b)};
  return {all_rows(transposed(b.as_contiguous())), experts_last(transposed(a.as_contiguous()))};
}

}  // namespace nemocube
