#include "ops/ivdep.h"
#include "ops/pieces_cpu.h"
#include "ops/scale_by/scale_by_kernels.h"

namespace nemocube::cpu {

void scale_by(const Tensor& y, const Tensor& x, const Tensor& s) {
  visit_float("scale_by", x.dtype(), [&]<class T>(TypeTag<T>) {
    using A = acc_t<T>;
    const A factor = s.dtype() == x.dtype() ? static_cast<A>(*s.data<T>()) : *s.data<A>();
    for_pieces(x.rows(), x.cols(), x.contiguous() && y.contiguous(), [&](auto r, auto first, auto last) {
      const T* from = x.row<T>(r);
      T* to = y.row<T>(r);
      NEMOCUBE_IVDEP
      for (std::int64_t c = first; c < last; ++c) to[c] = static_cast<T>(static_cast<A>(from[c]) * factor);
    });
  });
}

}  // namespace nemocube::cpu
