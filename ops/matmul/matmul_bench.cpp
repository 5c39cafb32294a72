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

using Sizes = std::vector<std::pair<std::int64_t, std::int64_t>>;

// The three products of a linear layer: y = x W^T, dx = dy W, dW += dy^T x.
std::vector<BenchCase> make_cases(const BenchOptions& options) {
  std::vector<BenchCase> cases;
  const std::int64_t tokens = options.small      ? 48
                              : options.emulated ? 256
                              : options.nano     ? 8192
                                                 : 2048,
                     divide = options.small      ? 32
                              : options.emulated ? 4
                                                 : 1;
  // Nano: projections into and out of Mamba, query, key and value together, and into the shared expert.
  const Sizes of_nano{{2688, 10304}, {4096, 2688}, {2688, 4608}, {2688, 3712}},
      of_small_models{{512, 2704}, {1024, 512}, {512, 2048}, {2048, 512}, {512, 512}, {512, 8192}};
  for (const auto& [full_in, full_out] : options.nano && !options.emulated ? of_nano : of_small_models) {
    const std::int64_t in = full_in / divide, out = full_out / divide;
    const Tensor x = normal(options, {tokens, in}, "x"), w = normal(options, {out, in}, "w");
    const Tensor dy = normal(options, {tokens, out}, "dy");
    const auto zeros = [&](std::int64_t rows, std::int64_t cols, DType dtype) {
      return Tensor::zeros({rows, cols}, dtype, options.device);
    };
    add_case(cases, "y = x W^T", {x, w, zeros(tokens, out, options.dtype), false, true}, Into::set);
    add_case(cases, "dx = dy W", {dy, w, zeros(tokens, in, options.dtype), false, false}, Into::set);
    add_case(cases, "dW += dy^T x", {dy, x, zeros(out, in, accumulate_dtype(options.dtype)), true, false},
             Into::add);
  }
  return cases;
}

const RegisterBench registration("matmul", make_cases);

}  // namespace
}  // namespace nemocube::matmul_bench
