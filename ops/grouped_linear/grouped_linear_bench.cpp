#include <cmath>

#include "core/rng.h"
#include "ops/bench.h"
#include "ops/grouped_linear/grouped_linear.h"

namespace nemocube {
namespace {

Tensor normal(const Shape& shape, DType dtype, const char* name) {
  Tensor t = Tensor::empty(shape, dtype);
  fill_normal(t, RandomStream(1, name), 0, 1);
  return t;
}

// The first row of every group against the definition in f64.
bool check_rows(const Tensor& y, const Tensor& x, const std::vector<std::int64_t>& offsets,
                const Tensor& weight) {
  for (std::size_t e = 0; e + 1 < offsets.size(); ++e) {
    if (offsets[e] == offsets[e + 1]) continue;
    const auto xv = x.narrow(0, offsets[e], 1).to_vector(), yv = y.narrow(0, offsets[e], 1).to_vector(),
               wv = weight.select(static_cast<std::int64_t>(e)).to_vector();
    for (std::size_t o = 0; o < yv.size(); ++o) {
      double want = 0;
      for (std::size_t i = 0; i < xv.size(); ++i) want += xv[i] * wv[o * xv.size() + i];
      const double rounding = y.dtype() == DType::bf16 ? 0x1p-8 : 0x1p-22;
      const double bound = rounding * std::abs(want) + 4 * 0x1p-24 * static_cast<double>(xv.size() + 1);
      if (!(std::abs(yv[o] - want) <= bound)) return false;
    }
  }
  return true;
}

void add_cases(std::vector<BenchCase>& cases, const char* kind, std::vector<std::int64_t> offsets,
               std::int64_t width, DType dtype) {
  const std::int64_t rows = offsets.back(), groups = static_cast<std::int64_t>(offsets.size()) - 1;
  const Tensor x = normal({rows, width}, dtype, "x"), dy = normal({rows, width}, dtype, "dy");
  const Tensor weight = normal({groups, width, width}, dtype, "weight");
  const Tensor dx = Tensor::zeros({rows, width}, dtype);
  const Tensor dweight = Tensor::zeros(weight.shape(), accumulate_dtype(dtype));
  BenchCase c;
  c.shape = cat("experts=", groups, " rows=", rows, " ", kind, " in=", width, " out=", width);
  c.flops = 2.0 * static_cast<double>(rows * width) * static_cast<double>(width);
  c.bytes = static_cast<double>(2 * x.bytes() + weight.bytes());
  c.variant = "forward";
  c.run = [=] { grouped_linear_forward(x, offsets, weight); };
  c.verify = [=] { return check_rows(grouped_linear_forward(x, offsets, weight), x, offsets, weight); };
  cases.push_back(c);
  c.variant = "backward input";
  c.run = [=] { grouped_linear_backward_input({dx, Into::set}, dy, offsets, weight); };
  cases.push_back(c);
  c.variant = "backward weight";
  c.bytes = static_cast<double>(2 * x.bytes() + 2 * dweight.bytes());
  c.run = [=] { grouped_linear_backward_weight({dweight, Into::add}, dy, offsets, x); };
  cases.push_back(c);
}

std::vector<BenchCase> make_cases(const BenchOptions& options) {
  const std::int64_t mean = options.small ? 8 : 256, width = options.small ? 16 : 512;
  std::vector<std::int64_t> even{0}, uneven{0};
  for (std::int64_t e = 0; e < 16; ++e) {
    even.push_back(even.back() + mean);
    uneven.push_back(uneven.back() + mean * (e % 4) * 2 / 3 + e);  // 0, 2/3, 4/3 and 2 times the mean
  }
  std::vector<BenchCase> cases;
  add_cases(cases, "even", even, width, options.dtype);
  add_cases(cases, "uneven", uneven, width, options.dtype);
  return cases;
}

const RegisterBench bench("grouped_linear", make_cases);

}  // namespace
}  // namespace nemocube
