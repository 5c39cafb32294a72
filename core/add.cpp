#include "core/add.h"

#include <type_traits>

#include "core/add_kernels.h"
#include "core/parallel_for.h"

namespace nemocube {
namespace {

template <class T, class B>
void add_rows(const Tensor& y, const Tensor& a, const Tensor& b) {
  using Sum = std::conditional_t<std::is_integral_v<T>, T, acc_t<T>>;
  const std::int64_t cols = y.cols();
  parallel_for(y.rows(), 1 + 16384 / (cols + 1), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      T* to = y.row<T>(r);
      const T* p = a.row<T>(r);
      const B* q = b.row<B>(r);
      for (std::int64_t c = 0; c < cols; ++c)
        to[c] = static_cast<T>(static_cast<Sum>(p[c]) + static_cast<Sum>(q[c]));
    }
  });
}

}  // namespace

void cpu::add_elements(const Tensor& y, const Tensor& a, const Tensor& b) {
  if (y.dtype() == DType::i64) return add_rows<std::int64_t, std::int64_t>(y, a, b);
  visit_float("sum", y.dtype(), [&]<class T>(TypeTag<T>) {
    visit_float("sum", b.dtype(), [&]<class B>(TypeTag<B>) { add_rows<T, B>(y, a, b); });
  });
}

void add_elements(const Tensor& y, const Tensor& a, const Tensor& b) {
  if (y.numel() > 0) add_elements_kernel(y, a, b);
}

}  // namespace nemocube
