#include <cmath>

#include "ops/bench_support.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/linear/linear.h"

namespace nemocube::grouped_linear_bench {
namespace {

using bench::bytes_of;
using bench::normal;
using Offsets = std::vector<std::int64_t>;

/// Calls fn(expert, first row, rows) for experts that have rows.
template <class Fn>
void for_groups(const Offsets& offsets, Fn&& fn) {
  for (std::size_t e = 0; e + 1 < offsets.size(); ++e)
    if (offsets[e] < offsets[e + 1])
      fn(static_cast<std::int64_t>(e), offsets[e], offsets[e + 1] - offsets[e]);
}

/// The first row of every group against the definition in f64.
bool check_y(const Tensor& y, const Tensor& x, const Offsets& offsets, const Tensor& weight) {
  bool right = true;
  for_groups(offsets, [&](std::int64_t e, std::int64_t first, std::int64_t) {
    const auto xv = x.narrow(0, first, 1).to_vector(), yv = y.narrow(0, first, 1).to_vector(),
               wv = weight.select(e).to_vector();
    for (std::size_t o = 0; o < yv.size(); ++o) {
      double want = 0;
      for (std::size_t i = 0; i < xv.size(); ++i) want += xv[i] * wv[o * xv.size() + i];
      const double rounding = y.dtype() == DType::bf16 ? 0x1p-8 : 0x1p-22;
      const double bound = rounding * std::abs(want) + 4 * 0x1p-24 * static_cast<double>(xv.size() + 1);
      right = right && std::abs(yv[o] - want) <= bound;
    }
  });
  return right;
}

/// Gradients against those of `linear`, group by group.
bool check_dx(const Tensor& dx, const Tensor& dy, const Offsets& offsets, const Tensor& weight) {
  bool right = true;
  for_groups(offsets, [&](std::int64_t e, std::int64_t first, std::int64_t n) {
    const Tensor want = Tensor::empty({n, dx.cols()}, dx.dtype(), dx.device());
    linear_backward_input({want, Into::set}, dy.narrow(0, first, n), weight.select(e));
    right = right && bench::close(dx.narrow(0, first, n), want, dx.dtype() == DType::bf16 ? 0x1p-7 : 1e-4);
  });
  return right;
}

bool check_dweight(const Tensor& dweight, const Tensor& dy, const Offsets& offsets, const Tensor& x) {
  bool right = true;
  for_groups(offsets, [&](std::int64_t e, std::int64_t first, std::int64_t n) {
    const Tensor want = Tensor::empty({dy.cols(), x.cols()}, dweight.dtype(), dweight.device());
    linear_backward_weight({want, Into::set}, dy.narrow(0, first, n), x.narrow(0, first, n));
    right = right && bench::close(dweight.select(e), want, 1e-4);
  });
  return right;
}

void add_cases(std::vector<BenchCase>& cases, const BenchOptions& options, const char* kind,
               const Offsets& offsets, std::int64_t in, std::int64_t out) {
  const std::int64_t rows = offsets.back(), experts = static_cast<std::int64_t>(offsets.size()) - 1;
  const Tensor x = normal(options, {rows, in}, "x"), dy = normal(options, {rows, out}, "dy");
  const Tensor weight = normal(options, {experts, out, in}, "weight");
  const Tensor dx = Tensor::zeros({rows, in}, options.dtype, options.device);
  const Tensor dweight = Tensor::zeros(weight.shape(), accumulate_dtype(options.dtype), options.device);
  const Tensor group_offsets = Tensor::from(offsets, {experts + 1}).to(options.device);
  double used = 0;  // the part of the weights that belongs to experts with rows
  for_groups(offsets, [&](auto...) { used += 1 / static_cast<double>(experts); });

  BenchCase c;
  c.shape = {{"experts", experts}, {"rows", rows}, {"in", in}, {"out", out}};
  c.flops = 2.0 * static_cast<double>(rows * in) * static_cast<double>(out);
  c.bytes = bytes_of(x, dy) + used * bytes_of(weight);  // y is as large as dy
  c.variant = cat("forward, ", kind, " rows");
  c.run = [=] { grouped_linear_forward(x, group_offsets, weight); };
  c.verify = [=] { return check_y(grouped_linear_forward(x, group_offsets, weight), x, offsets, weight); };
  cases.push_back(c);
  c.variant = cat("backward input, ", kind, " rows");
  c.run = [=] { grouped_linear_backward_input({dx, Into::set}, dy, group_offsets, weight); };
  c.verify = [=] {
    grouped_linear_backward_input({dx, Into::set}, dy, group_offsets, weight);
    return check_dx(dx, dy, offsets, weight);
  };
  cases.push_back(c);
  c.variant = cat("backward weight, ", kind, " rows");
  c.bytes = bytes_of(x, dy) + 2 * used * bytes_of(dweight);  // read and written, because it adds
  c.run = [=] { grouped_linear_backward_weight({dweight, Into::add}, dy, group_offsets, x); };
  c.verify = [=] {
    grouped_linear_backward_weight({dweight, Into::set}, dy, group_offsets, x);
    return check_dweight(dweight, dy, offsets, x);
  };
  cases.push_back(c);
}

std::vector<BenchCase> make_cases(const BenchOptions& options) {
  if (options
          .nano) {  // 8,192 tokens, 6 of 128 experts chosen: 384 rows for each, with 8 ranks of experts 3072
    std::vector<BenchCase> cases;
    Offsets of_rank{0};
    while (std::ssize(of_rank) <= 16) of_rank.push_back(of_rank.back() + 3072);
    add_cases(cases, options, "even", options.emulated ? Offsets{0, 384} : of_rank, 2688, 1856);
    return cases;
  }
  const std::int64_t mean = options.small ? 8 : options.emulated ? 64 : 256;
  const std::int64_t in = options.small      ? 16
                          : options.emulated ? 128
                                             : 512,
                     out = options.small      ? 16
                           : options.emulated ? 64
                                              : 512;
  Offsets even{0}, uneven{0};
  for (std::int64_t e = 0; e < 16; ++e) {
    even.push_back(even.back() + mean);
    uneven.push_back(uneven.back() + mean * (e % 4) * 2 / 3 + e);  // 0, 2/3, 4/3 and 2 times the mean
  }
  std::vector<BenchCase> cases;
  add_cases(cases, options, "even", even, in, out);
  add_cases(cases, options, "uneven", uneven, in, out);
  return cases;
}

const RegisterBench registration("grouped_linear", make_cases);

}  // namespace
}  // namespace nemocube::grouped_linear_bench
