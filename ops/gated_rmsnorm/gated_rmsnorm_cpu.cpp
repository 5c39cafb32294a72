#include "ops/gated_rmsnorm/gated_rmsnorm_kernels.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/parallel_for.h"
#include "ops/ivdep.h"
#include "ops/math.h"
#include "ops/prefetch.h"
#include "ops/reduce.h"

namespace nemocube::cpu {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// Calls fn(mean): mean(t, group, own) is the mean over a group of token t, `own` the sum over the channels of
// y.
template <class A, class Fn>
void with_means(const GroupSums& sums, std::int64_t group_size, Fn&& fn) {
  if (!sums.values.defined())
    return fn([n = static_cast<A>(group_size)](std::int64_t, std::int64_t, A own) { return own / n; });
  fn([&sums, n = static_cast<A>(group_size * sums.ranks)](std::int64_t t, std::int64_t group, A) {
    return sums.values.row<A>(t)[group] / n;
  });
}

// Sets g = y silu(z) for n channels and returns the sum of g^2.
template <class T, class A = acc_t<T>>
A gate_channels(A* __restrict g, const T* __restrict y, const T* __restrict z, std::int64_t n) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t c = 0; c < n; ++c) {
    g[c] = static_cast<A>(y[c]) * silu(static_cast<A>(z[c]));
    sum += g[c] * g[c];
  }
  return sum;
}

// Calls fn(t, group, g, sum of g^2) for each group of each token, with the g of its channels.
template <class T, class Fn>
void for_gated_groups(const Tensor& y, const Tensor& z, std::int64_t groups, Fn&& fn) {
  const std::int64_t group_size = y.cols() / groups;
  parallel_for(y.rows(), 1 + 4096 / y.cols(), [&](std::int64_t begin, std::int64_t end) {
    std::vector<acc_t<T>> gated(at(group_size));
    acc_t<T>* __restrict g = gated.data();
    for (std::int64_t t = begin; t < end; ++t) {
      const T *y_row = y.row<T>(t), *z_row = z.row<T>(t);
      for (std::int64_t group = 0; group < groups; ++group) {
        const std::int64_t c0 = group * group_size;
        fn(t, group, g, gate_channels(g, y_row + c0, z_row + c0, group_size));
      }
    }
  });
}

template <class T>
void forward(const Tensor& out, const Tensor& inv_rms, const Tensor& y, const Tensor& z, const Tensor& weight,
             double eps, const auto& mean) {
  using A = acc_t<T>;
  const std::int64_t channels = y.cols(), groups = inv_rms.cols(), group_size = channels / groups;
  const Tensor weights = weight.to(dtype_of<A>());
  const A* w = weights.template data<A>();
  A* r_of = inv_rms.data<A>();
  T* out_of = out.data<T>();
  for_gated_groups<T>(y, z, groups, [&](std::int64_t t, std::int64_t group, const A* __restrict g, A own) {
    const A r = A(1) / std::sqrt(mean(t, group, own) + static_cast<A>(eps));
    r_of[t * groups + group] = r;
    const A* __restrict wr = w + group * group_size;
    T* __restrict to = out_of + t * channels + group * group_size;
    for (std::int64_t c = 0; c < group_size; ++c) to[c] = static_cast<T>(wr[c] * (g[c] * r));
  });
}

template <class T>
void sum_dots(const Tensor& dots, const Tensor& dout, const Tensor& y, const Tensor& z, const Tensor& weight,
              const Tensor& inv_rms) {
  using A = acc_t<T>;
  const std::int64_t groups = inv_rms.cols(), group_size = y.cols() / groups;
  const Tensor weights = weight.to(dtype_of<A>());
  const A* w = weights.template data<A>();
  for_gated_groups<T>(y, z, groups, [&](std::int64_t t, std::int64_t group, const A* __restrict g, A) {
    const A* __restrict wr = w + group * group_size;
    const T* __restrict up = dout.row<T>(t) + group * group_size;
    A dot = 0;
#pragma omp simd reduction(+ : dot)
    for (std::int64_t c = 0; c < group_size; ++c) dot += wr[c] * static_cast<A>(up[c]) * g[c];
    dots.row<A>(t)[group] = dot * inv_rms.row<A>(t)[group];
  });
}

template <class T>
void backward(const Tensor& dy, const Tensor& dz, const Tensor& dweight, const Tensor& dout, const Tensor& y,
              const Tensor& z, const Tensor& weight, const Tensor& inv_rms, const auto& mean_of) {
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
        const A mean = mean_of(t, group, dot);
        T* to_y = dy.defined() ? dy.row<T>(t) + c0 : unwanted.data();
        T* to_z = dz.defined() ? dz.row<T>(t) + c0 : unwanted.data();
        NEMOCUBE_IVDEP
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

// Norm first.

/// The channels of a weight for a group, of its own or of all groups.
template <class A>
const A* weight_of(const Tensor& weights, std::int64_t group, std::int64_t group_size) {
  return weights.data<A>() + (weights.numel() == group_size ? 0 : group * group_size);
}

// Calls fn(t, group, its first channel) for each group of each token.
template <class Fn>
void for_groups(const Tensor& y, std::int64_t groups, Fn&& fn) {
  const std::int64_t group_size = y.cols() / groups;
  parallel_for(y.rows(), 1 + 4096 / y.cols(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t)
      for (std::int64_t group = 0; group < groups; ++group) fn(t, group, group * group_size);
  });
}

template <class T, class A = acc_t<T>>
A sum_of_squares(const T* __restrict y, std::int64_t n) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t c = 0; c < n; ++c) sum += static_cast<A>(y[c]) * static_cast<A>(y[c]);
  return sum;
}

template <class T>
void normed_forward(const Tensor& out, const Tensor& inv_rms, const Tensor& y, const Tensor& z,
                    const Tensor& weight, double eps, const auto& mean) {
  using A = acc_t<T>;
  const std::int64_t groups = inv_rms.cols(), group_size = y.cols() / groups;
  const Tensor weights = weight.to(dtype_of<A>());
  for_groups(y, groups, [&](std::int64_t t, std::int64_t group, std::int64_t c0) {
    const T* __restrict yr = y.row<T>(t) + c0;
    const T* __restrict zr = z.row<T>(t) + c0;
    const A* __restrict w = weight_of<A>(weights, group, group_size);
    T* __restrict to = out.row<T>(t) + c0;
    const A r = A(1) / std::sqrt(mean(t, group, sum_of_squares(yr, group_size)) + static_cast<A>(eps));
    inv_rms.row<A>(t)[group] = r;
    for (std::int64_t c = 0; c < group_size; ++c)
      to[c] = static_cast<T>(w[c] * (static_cast<A>(yr[c]) * r) * silu(static_cast<A>(zr[c])));
  });
}

template <class T>
void sum_normed_dots(const Tensor& dots, const Tensor& dout, const Tensor& y, const Tensor& z,
                     const Tensor& weight, const Tensor& inv_rms) {
  using A = acc_t<T>;
  const std::int64_t groups = inv_rms.cols(), group_size = y.cols() / groups;
  const Tensor weights = weight.to(dtype_of<A>());
  for_groups(y, groups, [&](std::int64_t t, std::int64_t group, std::int64_t c0) {
    const T* __restrict yr = y.row<T>(t) + c0;
    const T* __restrict zr = z.row<T>(t) + c0;
    const T* __restrict up = dout.row<T>(t) + c0;
    const A* __restrict w = weight_of<A>(weights, group, group_size);
    A dot = 0;
#pragma omp simd reduction(+ : dot)
    for (std::int64_t c = 0; c < group_size; ++c)
      dot += w[c] * static_cast<A>(up[c]) * silu(static_cast<A>(zr[c])) * static_cast<A>(yr[c]);
    dots.row<A>(t)[group] = dot * inv_rms.row<A>(t)[group];
  });
}

template <class T>
void normed_backward(const Tensor& dy, const Tensor& dz, const Tensor& dweight, const Tensor& dout,
                     const Tensor& y, const Tensor& z, const Tensor& weight, const Tensor& inv_rms,
                     const auto& mean_of) {
  using A = acc_t<T>;
  const std::int64_t channels = y.cols(), groups = inv_rms.cols(), group_size = channels / groups;
  const Tensor weights = weight.to(dtype_of<A>());
  for_segments(y.rows(), [&](std::int64_t segment, std::int64_t first, std::int64_t last) {
    std::vector<A> scratch(at(3 * group_size)), sums(at(channels), A(0));
    std::vector<T> unwanted(at(group_size));
    A* __restrict u = scratch.data();
    A* __restrict normed = scratch.data() + group_size;    // y r
    A* __restrict of_z = scratch.data() + 2 * group_size;  // dz
    for (std::int64_t t = first; t < last; ++t)
      for (std::int64_t group = 0; group < groups; ++group) {
        const std::int64_t c0 = group * group_size;
        const T* __restrict gr = dout.row<T>(t) + c0;
        const T* __restrict yr = y.row<T>(t) + c0;
        const T* __restrict zr = z.row<T>(t) + c0;
        const A* __restrict w = weight_of<A>(weights, group, group_size);
        A* __restrict sr = sums.data() + c0;
        const A r = inv_rms.row<A>(t)[group];
        A dot = 0;
#pragma omp simd reduction(+ : dot)
        for (std::int64_t c = 0; c < group_size; ++c) {
          const A x = static_cast<A>(zr[c]), s = sigmoid(x), up = static_cast<A>(gr[c]), gated = up * (x * s);
          normed[c] = static_cast<A>(yr[c]) * r;
          u[c] = w[c] * gated;
          of_z[c] = w[c] * up * normed[c] * (s * (A(1) + x * (A(1) - s)));
          sr[c] += gated * normed[c];
          dot += u[c] * normed[c];
        }
        const A mean = mean_of(t, group, dot);
        T* to_y = dy.defined() ? dy.row<T>(t) + c0 : unwanted.data();
        T* to_z = dz.defined() ? dz.row<T>(t) + c0 : unwanted.data();
        for (std::int64_t c = 0; c < group_size; ++c) to_y[c] = static_cast<T>(r * (u[c] - normed[c] * mean));
        for (std::int64_t c = 0; c < group_size; ++c) to_z[c] = static_cast<T>(of_z[c]);
      }
    if (dweight.defined()) std::ranges::copy(sums, dweight.row<A>(segment));
  });
}

}  // namespace

void gated_rmsnorm_squares(const Tensor& squares, const Tensor& y, const Tensor& z, GateOrder order) {
  visit_float("gated_rmsnorm", y.dtype(), [&]<class T>(TypeTag<T>) {
    using A = acc_t<T>;
    if (order == GateOrder::norm_first)
      return for_groups(y, squares.cols(), [&](std::int64_t t, std::int64_t group, std::int64_t c0) {
        squares.row<A>(t)[group] = sum_of_squares(y.row<T>(t) + c0, y.cols() / squares.cols());
      });
    for_gated_groups<T>(y, z, squares.cols(), [&](std::int64_t t, std::int64_t group, const A*, A sum) {
      squares.row<A>(t)[group] = sum;
    });
  });
}

void gated_rmsnorm_forward(const Tensor& out, const Tensor& inv_rms, const Tensor& y, const Tensor& z,
                           const Tensor& weight, double eps, const GroupSums& squares, GateOrder order) {
  visit_float("gated_rmsnorm", y.dtype(), [&]<class T>(TypeTag<T>) {
    with_means<acc_t<T>>(squares, y.cols() / inv_rms.cols(), [&](const auto& mean) {
      if (order == GateOrder::gate_first)
        forward<T>(out, inv_rms, y, z, weight, eps, mean);
      else
        normed_forward<T>(out, inv_rms, y, z, weight, eps, mean);
    });
  });
}

void gated_rmsnorm_dots(const Tensor& dots, const Tensor& dout, const Tensor& y, const Tensor& z,
                        const Tensor& weight, const Tensor& inv_rms, GateOrder order) {
  visit_float("gated_rmsnorm", y.dtype(), [&]<class T>(TypeTag<T>) {
    if (order == GateOrder::gate_first)
      sum_dots<T>(dots, dout, y, z, weight, inv_rms);
    else
      sum_normed_dots<T>(dots, dout, y, z, weight, inv_rms);
  });
}

void gated_rmsnorm_backward(const Tensor& dy, const Tensor& dz, const Tensor& dweight, const Tensor& dout,
                            const Tensor& y, const Tensor& z, const Tensor& weight, const Tensor& inv_rms,
                            const GroupSums& dots, GateOrder order) {
  visit_float("gated_rmsnorm", y.dtype(), [&]<class T>(TypeTag<T>) {
    with_means<acc_t<T>>(dots, y.cols() / inv_rms.cols(), [&](const auto& mean) {
      if (order == GateOrder::gate_first)
        backward<T>(dy, dz, dweight, dout, y, z, weight, inv_rms, mean);
      else
        normed_backward<T>(dy, dz, dweight, dout, y, z, weight, inv_rms, mean);
    });
  });
}

}  // namespace nemocube::cpu
