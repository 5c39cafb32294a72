#include <cmath>

#include "ops/bench_support.h"
#include "ops/matmul/matmul.h"

namespace nemocube::matmul_bench {
namespace {

using bench::normal;

struct Product {
  Tensor a, b, c;
  bool transpose_a = false, transpose_b = false;

  double exact(std::int64_t i, std::int64_t j) const {
    const auto a_flat = a.to_vector(), b_flat = b.to_vector();
    const auto at = [](const std::vector<double>& v, std::int64_t cols, std::int64_t row, std::int64_t col) {
      return v[static_cast<std::size_t>(row * cols + col)];
    };
    const std::int64_t terms = transpose_a ? a.rows() : a.cols();
    double sum = 0;
    for (std::int64_t k = 0; k < terms; ++k)
      sum += (transpose_a ? at(a_flat, a.cols(), k, i) : at(a_flat, a.cols(), i, k)) *
             (transpose_b ? at(b_flat, b.cols(), j, k) : at(b_flat, b.cols(), k, j));
    return sum;
  }
  bool spot_check() const {
    matmul({c, Into::set}, a, transpose_a, b, transpose_b);
    const std::int64_t last_row = c.rows() - 1, last_col = c.cols() - 1;
    const std::int64_t terms = transpose_a ? a.rows() : a.cols();
    const double rounding = c.dtype() == DType::bf16 ? 0x1p-8 : 0x1p-22;
    const auto values = c.to_vector();
    for (const auto& [i, j] : {std::pair<std::int64_t, std::int64_t>{0, 0},
                               {last_row, last_col},
                               {last_row / 2, last_col / 3},
                               {last_row / 3, last_col}}) {
      const double want = exact(i, j), got = values[static_cast<std::size_t>(i * c.cols() + j)];
      const double bound = rounding * std::abs(want) + 4 * 0x1p-24 * static_cast<double>(terms + 1);
      if (!(std::abs(got - want) <= bound)) return false;
    }
    return true;
  }
};

void add_case(std::vector<BenchCase>& cases, const char* variant, const Product& p, Into how) {
  const std::int64_t terms = p.transpose_a ? p.a.rows() : p.a.cols();
  BenchCase c;
  c.variant = variant;
  c.shape = {{"m", p.c.rows()}, {"n", p.c.cols()}, {"k", terms}};
  c.bytes = static_cast<double>(p.a.bytes() + p.b.bytes() + (how == Into::add ? 2 : 1) * p.c.bytes());
  c.flops = 2.0 * static_cast<double>(p.c.numel()) * static_cast<double>(terms);
  c.run = [p, how] { matmul({p.c, how}, p.a, p.transpose_a, p.b, p.transpose_b); };
  c.verify = [p] { return p.spot_check(); };
  cases.push_back(std::move(c));
}

// The three products of a linear layer: y = x W^T, dx = dy W, dW += dy^T x.
std::vector<BenchCase> make_cases(const BenchOptions& options) {
  std::vector<BenchCase> cases;
  const std::int64_t tokens = options.small ? 48 : 2048, divide = options.small ? 32 : 1;
  for (const auto& [full_in, full_out] : {std::pair<std::int64_t, std::int64_t>{512, 2704},
                                          {1024, 512},
                                          {512, 2048},
                                          {2048, 512},
                                          {512, 512},
                                          {512, 8192}}) {
    const std::int64_t in = full_in / divide, out = full_out / divide;
    const DType dtype = options.dtype;
    const Tensor x = normal({tokens, in}, dtype, "x"), w = normal({out, in}, dtype, "w");
    const Tensor dy = normal({tokens, out}, dtype, "dy");
    add_case(cases, "y = x W^T", {x, w, Tensor::zeros({tokens, out}, dtype, Device::cpu), false, true},
             Into::set);
    add_case(cases, "dx = dy W", {dy, w, Tensor::zeros({tokens, in}, dtype, Device::cpu), false, false},
             Into::set);
    add_case(cases, "dW += dy^T x",
             {dy, x, Tensor::zeros({out, in}, accumulate_dtype(dtype), Device::cpu), true, false}, Into::add);
  }
  return cases;
}

const RegisterBench registration("matmul", make_cases);

}  // namespace
}  // namespace nemocube::matmul_bench
