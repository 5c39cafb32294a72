#include "ops/permute/permute_kernels.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "core/parallel_for.h"

namespace nemocube::cpu {
namespace {

// The fewest tokens for a thread, so that every thread moves about 64 KiB.
std::int64_t token_grain(const Permutation& p, std::int64_t cols) {
  return 1 + 16384 / (1 + cols * p.slot.dim(1));
}

template <class Out, class In>
void combine_as(const Output& y, const Tensor& rows, const Tensor& weights, const Permutation& p) {
  using A = acc_t<In>;
  constexpr std::int64_t block = 512;
  const std::int64_t cols = rows.cols(), choices = p.slot.dim(1);
  parallel_for(p.slot.dim(0), token_grain(p, cols), [&](std::int64_t first, std::int64_t last) {
    std::array<A, block> sum;
    for (std::int64_t t = first; t < last; ++t) {
      const auto* slot = p.slot.row<std::int32_t>(t);
      const A* weight = weights.defined() ? weights.row<A>(t) : nullptr;
      for (std::int64_t begin = 0; begin < cols; begin += block) {
        const std::int64_t columns = std::min(block, cols - begin);
        A* __restrict s = sum.data();
        std::fill_n(s, columns, A{0});
        for (std::int64_t j = 0; j < choices; ++j) {
          if (slot[j] < 0) continue;
          const In* __restrict row = rows.row<In>(slot[j]) + begin;
          const A w = weight ? weight[j] : A{1};
          for (std::int64_t c = 0; c < columns; ++c) s[c] += w * static_cast<A>(row[c]);
        }
        Out* __restrict to = y.to.row<Out>(t) + begin;
        if (y.how == Into::add)
          for (std::int64_t c = 0; c < columns; ++c) to[c] = static_cast<Out>(static_cast<A>(to[c]) + s[c]);
        else
          for (std::int64_t c = 0; c < columns; ++c) to[c] = static_cast<Out>(s[c]);
      }
    }
  });
}

template <class Out, class In>
void spread_as(const Output& drows, const Tensor& dy, const Tensor& weights, const Permutation& p) {
  using A = acc_t<In>;
  const std::int64_t cols = dy.cols(), choices = p.slot.dim(1);
  parallel_for(p.slot.dim(0), token_grain(p, cols), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
      const In* __restrict g = dy.row<In>(t);
      const auto* slot = p.slot.row<std::int32_t>(t);
      for (std::int64_t j = 0; j < choices; ++j) {
        if (slot[j] < 0) continue;
        Out* __restrict to = drows.to.row<Out>(slot[j]);
        const A w = weights.row<A>(t)[j];
        if (drows.how == Into::add)
          for (std::int64_t c = 0; c < cols; ++c)
            to[c] = static_cast<Out>(static_cast<A>(to[c]) + w * static_cast<A>(g[c]));
        else
          for (std::int64_t c = 0; c < cols; ++c) to[c] = static_cast<Out>(w * static_cast<A>(g[c]));
      }
    }
  });
}

// Lane l sums the elements whose index is l modulo `lanes`: a fixed order that the compiler can vectorise.
template <class T>
acc_t<T> dot(const T* __restrict a, const T* __restrict b, std::int64_t n) {
  using A = acc_t<T>;
  constexpr std::int64_t lanes = 32;
  std::array<A, lanes> lane{};
  A* __restrict s = lane.data();
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (std::int64_t l = 0; l < lanes; ++l) s[l] += static_cast<A>(a[i + l]) * static_cast<A>(b[i + l]);
  for (; i < n; ++i) s[i % lanes] += static_cast<A>(a[i]) * static_cast<A>(b[i]);
  for (std::int64_t half = lanes / 2; half > 0; half /= 2)
    for (std::int64_t l = 0; l < half; ++l) s[l] += s[l + half];
  return s[0];
}

template <class T>
void dot_as(const Output& dweights, const Tensor& dy, const Tensor& rows, const Permutation& p) {
  using A = acc_t<T>;
  const std::int64_t cols = dy.cols(), choices = p.slot.dim(1);
  parallel_for(p.slot.dim(0), token_grain(p, cols), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
      A* to = dweights.to.row<A>(t);
      const auto* slot = p.slot.row<std::int32_t>(t);
      for (std::int64_t j = 0; j < choices; ++j) {
        const A product = cols == 0 || slot[j] < 0 ? A{0} : dot(dy.row<T>(t), rows.row<T>(slot[j]), cols);
        to[j] = dweights.how == Into::add ? to[j] + product : product;
      }
    }
  });
}

}  // namespace

void expert_offsets(const Tensor& offsets, const Tensor& experts, std::int64_t expert_count, Range here) {
  offsets.zero();
  auto* to = offsets.data<std::int64_t>();
  for (std::int64_t t = 0; t < experts.dim(0); ++t)
    for (std::int64_t j = 0; j < experts.dim(1); ++j) {
      const std::int32_t e = experts.row<std::int32_t>(t)[j];
      require(e >= 0 && e < expert_count, "make_permutation: expert ", e, " of token ", t, ", choice ", j,
              " is outside [0, ", expert_count, ")");
      if (e >= here.begin && e < here.end) ++to[e - here.begin + 1];
    }
  for (std::int64_t e = 0; e < here.size(); ++e) to[e + 1] += to[e];
}

void order_rows(const Permutation& p, const Tensor& experts, std::int64_t expert_count, Range here) {
  expert_offsets(p.offsets, experts, expert_count, here);
  const auto* offsets = p.offsets.data<std::int64_t>();
  require(offsets[here.size()] == p.source.numel(), "make_permutation: want ", p.source.numel(),
          " rows, the experts have ", offsets[here.size()]);
  std::vector<std::int64_t> next(offsets, offsets + here.size());
  auto* source = p.source.data<std::int32_t>();
  for (std::int64_t t = 0; t < experts.dim(0); ++t)
    for (std::int64_t j = 0; j < experts.dim(1); ++j) {
      const std::int32_t e = experts.row<std::int32_t>(t)[j];
      std::int32_t& slot = p.slot.row<std::int32_t>(t)[j];
      slot = -1;
      if (e < here.begin || e >= here.end) continue;
      const std::int64_t r = next[static_cast<std::size_t>(e - here.begin)]++;
      source[r] = static_cast<std::int32_t>(t);
      slot = static_cast<std::int32_t>(r);
    }
}

void merge_by_expert(const Permutation& p, const Tensor& ends, Range here) {
  const std::int64_t sources = ends.dim(0), rows = p.source.numel();
  const auto end = [&](std::int64_t s, std::int64_t e) { return e < 0 ? 0 : ends.row<std::int64_t>(s)[e]; };
  auto* offsets = p.offsets.data<std::int64_t>();
  std::vector<std::int64_t> next;  // row of each source whose place comes next
  std::int64_t at = 0;
  for (std::int64_t s = 0; s < sources; ++s) {
    next.push_back(at);
    for (std::int64_t e = here.begin; e < here.end; ++e)
      require(end(s, e) >= end(s, e - 1), "merge_by_expert: the ends of source ", s, " do not ascend");
    at += end(s, here.end - 1) - end(s, here.begin - 1);
  }
  require(at == rows, "merge_by_expert: want ", rows, " rows, the sources have ", at);
  std::int64_t to = 0;
  for (std::int64_t e = here.begin; e < here.end; ++e) {
    offsets[e - here.begin] = to;
    for (std::int64_t s = 0; s < sources; ++s)
      for (std::int64_t n = end(s, e) - end(s, e - 1); n > 0; --n, ++to) {
        const std::int64_t row = next[static_cast<std::size_t>(s)]++;
        p.source.data<std::int32_t>()[to] = static_cast<std::int32_t>(row);
        p.slot.row<std::int32_t>(row)[0] = static_cast<std::int32_t>(to);
      }
  }
  offsets[here.size()] = to;
}

void gather_rows(const Tensor& y, const Tensor& x, const Permutation& p) {
  if (y.numel() == 0) return;
  const auto* source = p.source.data<std::int32_t>();
  const std::int64_t element = size_of(x.dtype());
  const std::int64_t row_bytes = y.cols() * element, stride = x.row_stride() * element;
  std::byte* to = y.host_bytes();
  const std::byte* from = x.host_bytes();
  parallel_for(y.rows(), 1 + 65536 / row_bytes, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      std::memcpy(to + r * row_bytes, from + source[r] * stride, static_cast<std::size_t>(row_bytes));
  });
}

void combine_rows(const Output& y, const Tensor& rows, const Tensor& weights, const Permutation& p) {
  if (y.to.numel() == 0) return;
  visit_float("combine_rows", rows.dtype(), [&]<class In>(TypeTag<In>) {
    visit_dtype<In, acc_t<In>>("combine_rows", y.to.dtype(),
                               [&]<class Out>(TypeTag<Out>) { combine_as<Out, In>(y, rows, weights, p); });
  });
}

void combine_rows_backward(const Output& drows, const Output& dweights, const Tensor& dy, const Tensor& rows,
                           const Tensor& weights, const Permutation& p) {
  visit_float("combine_rows_backward", dy.dtype(), [&]<class In>(TypeTag<In>) {
    if (drows.to.defined() && drows.to.numel() > 0)
      visit_dtype<In, acc_t<In>>("combine_rows_backward", drows.to.dtype(),
                                 [&]<class Out>(TypeTag<Out>) { spread_as<Out, In>(drows, dy, weights, p); });
    if (dweights.to.defined() && dweights.to.numel() > 0) dot_as<In>(dweights, dy, rows, p);
  });
}

}  // namespace nemocube::cpu
