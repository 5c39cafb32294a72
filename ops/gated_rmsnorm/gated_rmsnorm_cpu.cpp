#include "ops/gated_rmsnorm/gated_rmsnorm_kernels.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/parallel_for.h"
#include "ops/math.h"
#include "ops/prefetch.h"
#include "ops/reduce.h"

namespace nemocube::cpu {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

template <class T>
void forward(const Tensor& out, const Tensor& inv_rms, const Tensor& y, const Tensor& z, const Tensor& weight,
             double eps) {
  using A = acc_t<T>;
  const std::int64_t channels = y.cols(), groups = inv_rms.cols(), group_size = channels / groups;
  const Tensor weights = weight.to(dtype_of<A>());
  const A* w = weights.template data<A>();
  parallel_for(y.rows(), 1 + 4096 / channels, [&](std::int64_t begin, std::int64_t end) {
    std::vector<A> gated(at(group_size));
    A* __restrict g = gated.data();
    for (std::int64_t t = begin; t < end; ++t) {
      const T *y_row = y.row<T>(t), *z_row = z.row<T>(t);
      T* out_row = out.row<T>(t);
      A* r_row = inv_rms.row<A>(t);
      for (std::int64_t group = 0; group < groups; ++group) {
        const std::int64_t c0 = group * group_size;
        const T* __restrict yr = y_row + c0;
        const T* __restrict zr = z_row + c0;
        const A* __restrict wr = w + c0;
        T* __restrict to = out_row + c0;
        A sum = 0;
#pragma omp simd reduction(+ : sum)
        for (std::int64_t c = 0; c < group_size; ++c) {
          g[c] = static_cast<A>(yr[c]) * silu(static_cast<A>(zr[c]));
          sum += g[c] * g[c];
        }
        const A r = A(1) / std::sqrt(sum / static_cast<A>(group_size) + static_cast<A>(eps));
        r_row[group] = r;
        for (std::int64_t c = 0; c < group_size; ++c) to[c] = static_cast<T>(wr[c] * (g[c] * r));
      }
    }
  });
}

template <class T>
void backward(const Tensor& dy, const Tensor& dz, const Tensor& dweight, const Tensor& dout, const Tensor& y,
              const Tensor& z, const Tensor& weight, const Tensor& inv_rms) {
  using A = acc_t<T>;
  const std::int64_t channels = y.cols(), groups = inv_rms.cols(), group_size = channels / groups;
  const Tensor weights = weight.to(dtype_of<A>());
  const A* w = weights.template data<A>();
  for_segments(y.rows(), [&](std::int64_t segment, std::int64_t first, std::int64_t last) {
    std::vector<A> scratch(at(3 * group_size)), sums(at(channels), A(0));
    std::vector<T> unwanted(at(group_size));
    A* __restrict gate = scratch.data();                     // silu(z)
    A* __restrict slope = scratch.data() + group_size;       // y silu'(z)
    A* __restrict normed = scratch.data() + 2 * group_size;  // g r
    for (std::int64_t t = first; t < last; ++t) {
      const T *y_row = y.row<T>(t), *z_row = z.row<T>(t), *g_row = dout.row<T>(t);
      const A* r_row = inv_rms.row<A>(t);
      for (std::int64_t group = 0; group < groups; ++group) {
        const std::int64_t c0 = group * group_size;
        if (t + 1 < last)
          for (const Tensor* next : {&y, &z, &dout}) prefetch(next->row<T>(t + 1) + c0, group_size);
        const T* gr = g_row + c0;
        const T* __restrict yr = y_row + c0;
        const T* __restrict zr = z_row + c0;
        const A* __restrict wr = w + c0;
        A* __restrict sr = sums.data() + c0;
        const A r = r_row[group];
        A dot = 0;
#pragma omp simd reduction(+ : dot)
        for (std::int64_t c = 0; c < group_size; ++c) {
          const A value = static_cast<A>(yr[c]), x = static_cast<A>(zr[c]), s = sigmoid(x);
          const A up = static_cast<A>(gr[c]);
          gate[c] = x * s;
          slope[c] = value * (s * (A(1) + x * (A(1) - s)));
          normed[c] = value * gate[c] * r;
          sr[c] += up * normed[c];
          dot += wr[c] * up * normed[c];
        }
        const A mean = dot / static_cast<A>(group_size);
        T* to_y = dy.defined() ? dy.row<T>(t) + c0 : unwanted.data();
        T* to_z = dz.defined() ? dz.row<T>(t) + c0 : unwanted.data();
#pragma GCC ivdep
        for (std::int64_t c = 0; c < group_size; ++c) {
          const A back = r * (wr[c] * static_cast<A>(gr[c]) - normed[c] * mean);
          to_y[c] = static_cast<T>(back * gate[c]);
          to_z[c] = static_cast<T>(back * slope[c]);
        }
      }
    }
    if (dweight.defined()) std::ranges::copy(sums, dweight.row<A>(segment));
  });
}

}  // namespace

void gated_rmsnorm_forward(const Tensor& out, const Tensor& inv_rms, const Tensor& y, const Tensor& z,
                           const Tensor& weight, double eps) {
  visit_float("gated_rmsnorm", y.dtype(),
              [&]<class T>(TypeTag<T>) { forward<T>(out, inv_rms, y, z, weight, eps); });
}

void gated_rmsnorm_backward(const Tensor& dy, const Tensor& dz, const Tensor& dweight, const Tensor& dout,
                            const Tensor& y, const Tensor& z, const Tensor& weight, const Tensor& inv_rms) {
  visit_float("gated_rmsnorm", y.dtype(),
              [&]<class T>(TypeTag<T>) { backward<T>(dy, dz, dweight, dout, y, z, weight, inv_rms); });
}

}  // namespace nemocube::cpu
