#include <algorithm>

#include "ops/ivdep.h"
#include "ops/pieces_cpu.h"
#include "ops/scale_columns/scale_columns_kernels.h"

namespace nemocube::cpu {

void scale_columns(const Tensor& y, const Tensor& x, const ColumnFactors& factors) {
  visit_float("scale_columns", x.dtype(), [&]<class T>(TypeTag<T>) {
    using A = acc_t<T>;
    const bool flat = factors.count == 1 && x.contiguous() && y.contiguous();
    for_pieces(x.rows(), x.cols(), flat, [&](auto r, auto first, auto last) {
      const T* from = x.row<T>(r);
      T* to = y.row<T>(r);
      std::int64_t begin = first;
      for (std::size_t part = 0; begin < last; ++part) {
        const std::int64_t end = flat ? last : std::min<std::int64_t>(last, factors.ends[part]);
        const A factor = static_cast<A>(factors.factors[part]);
        NEMOCUBE_IVDEP
        for (std::int64_t c = begin; c < end; ++c) to[c] = static_cast<T>(static_cast<A>(from[c]) * factor);
        begin = std::max(begin, end);
      }
    });
  });
}

}  // namespace nemocube::cpu
