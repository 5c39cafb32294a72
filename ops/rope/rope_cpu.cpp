#include <algorithm>
#include <cmath>

#include "core/parallel_for.h"
#include "ops/ivdep.h"
#include "ops/rope/rope_kernels.h"

namespace nemocube::cpu {
namespace {

/// `to` may be `from`. `table`: cos of `pairs` angles, then sin.
template <class T, class A>
void rotate_head(T* to, const T* from, const A* table, std::int64_t pairs, std::int64_t head_dim, A sign) {
  NEMOCUBE_IVDEP
  for (std::int64_t i = 0; i < pairs; ++i) {
    const A a = static_cast<A>(from[i]), b = static_cast<A>(from[pairs + i]);
    const A c = table[i], z = sign * table[pairs + i];
    to[i] = static_cast<T>(a * c - b * z);
    to[pairs + i] = static_cast<T>(b * c + a * z);
  }
  if (to != from) std::copy(from + 2 * pairs, from + head_dim, to + 2 * pairs);
}

}  // namespace

void rope_table(const Tensor& table, const Tensor& positions, const Tensor& inverse,
                double attention_factor) {
  const std::int64_t pairs = inverse.numel();
  if (table.numel() == 0) return;
  const auto* position = positions.data<std::int64_t>();
  const auto* f = inverse.data<double>();
  visit_dtype<float, double>("rope", table.dtype(), [&]<class A>(TypeTag<A>) {
    parallel_for(table.rows(), 1 + 512 / pairs, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        A* row = table.row<A>(r);
        for (std::int64_t i = 0; i < pairs; ++i) {
          const double angle = static_cast<double>(position[r]) * f[i];
          row[i] = static_cast<A>(attention_factor * std::cos(angle));
          row[pairs + i] = static_cast<A>(attention_factor * std::sin(angle));
        }
      }
    });
  });
}

void rope_rotate(const RopeOperands& o) {
  const std::int64_t pairs = o.table.cols() / 2;
  const Tensor& any = o.q ? o.q : o.k;
  visit_float("rope", any.dtype(), [&]<class T>(TypeTag<T>) {
    using A = acc_t<T>;
    const A sign = o.back ? A(-1) : A(1);
    const auto rotate_row = [&](const Tensor& out, const Tensor& in, std::int64_t r) {
      if (!in) return;
      T* to = out.row<T>(r);
      const T* from = in.row<T>(r);
      const A* table = o.table.row<A>(r);
      for (std::int64_t c = 0; c < in.cols(); c += o.head_dim)
        rotate_head(to + c, from + c, table, pairs, o.head_dim, sign);
    };
    const std::int64_t width = (o.q ? o.q.cols() : 0) + (o.k ? o.k.cols() : 0);
    parallel_for(any.rows(), 1 + 16384 / (width + 1), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        rotate_row(o.q_out, o.q, r);
        rotate_row(o.k_out, o.k, r);
      }
    });
  });
}

}  // namespace nemocube::cpu
