#include <cmath>

#include "ops/bench_support.h"
#include "ops/linear/linear.h"
#include "ops/lora/lora.h"

namespace nemocube::lora_bench {
namespace {

using bench::bytes_of;
using bench::normal;

struct Sizes {
  std::int64_t rows, in, rank, out;
};

Sizes sizes_of(const BenchOptions& o) {
  if (o.small) return {48, 24, 8, 40};
  if (o.nano) return {o.emulated ? 256 : 8192, 2688, 16, 10304};  // of Mamba's in_proj
  if (o.emulated) return {512, 256, 16, 512};
  return {2048, 512, 16, 2048};
}

struct Operands {
  Tensor x, y, a, b, g;
  double scale = 2;
  LoraDropout dropout;
};

/// y + s B A x in f64, one row.
std::vector<double> row_of(const Operands& o, std::int64_t row) {
  const auto x = o.x.narrow(0, row, 1).to_vector(), a = o.a.to_vector(), b = o.b.to_vector();
  auto y = o.y.narrow(0, row, 1).to_vector();
  const std::size_t rank = static_cast<std::size_t>(o.a.dim(0));
  for (std::size_t k = 0; k < rank; ++k) {
    double u = 0;
    for (std::size_t i = 0; i < x.size(); ++i) u += o.scale * a[k * x.size() + i] * x[i];
    for (std::size_t j = 0; j < y.size(); ++j) y[j] += b[j * rank + k] * u;
  }
  return y;
}

/// One row of y without dropout against the definition; with dropout each element is what it was or
/// 1 / (1 - p) of the branch away.
bool check_row(const Tensor& y, const Operands& o) {
  const std::int64_t row = y.rows() / 2;
  const auto got = y.narrow(0, row, 1).to_vector(), old = o.y.narrow(0, row, 1).to_vector(),
             want = row_of(o, row);
  // A branch is s times a sum of `rank` products of a normal number and one of size sqrt(in).
  const double size = o.scale * std::sqrt(static_cast<double>(o.x.cols() * o.a.dim(0)));
  const double rounding = y.dtype() == DType::bf16 ? 0x1p-7 : 0x1p-18;
  const double p = o.dropout.probability;
  const auto near = [&](std::size_t i, double value) {
    return std::abs(got[i] - value) <= rounding * (std::abs(value) + size);
  };
  for (std::size_t i = 0; i < got.size(); ++i)
    if (!near(i, old[i] + (want[i] - old[i]) / (1 - p)) && !(p > 0 && near(i, old[i]))) return false;
  return true;
}

/// <dx, x> = <dA, A> = <dB, B>, because the branch is linear in x, in A and in B: each is <g, branch>.
bool gradients_agree(const Tensor& dx, const Tensor& x, const Var& a, const Var& b) {
  const auto dot = [](const Tensor& left, const Tensor& right) {
    const auto l = left.to_vector(), r = right.to_vector();
    double sum = 0, squares = 0;
    for (std::size_t i = 0; i < l.size(); ++i) {
      sum += l[i] * r[i];
      squares += l[i] * r[i] * l[i] * r[i];
    }
    return std::pair(sum, std::sqrt(squares));
  };
  const auto [by_x, size_x] = dot(dx, x);
  const auto [by_a, size_a] = dot(a.grad(), a.value());
  const auto [by_b, size_b] = dot(b.grad(), b.value());
  const double bound = (x.dtype() == DType::bf16 ? 0x1p-5 : 0x1p-16) * (size_x + size_a + size_b);
  return std::abs(by_x - by_a) <= bound && std::abs(by_x - by_b) <= bound;
}

void add_cases(std::vector<BenchCase>& cases, const char* kind, const Operands& o) {
  const double product = 2.0 * static_cast<double>(o.x.rows() * o.a.dim(0)),
               both_products = product * static_cast<double>(o.x.cols() + o.y.cols());
  BenchCase forward;
  forward.variant = cat("forward", kind);
  forward.shape = {{"rows", o.x.rows()}, {"in", o.x.cols()}, {"rank", o.a.dim(0)}, {"out", o.y.cols()}};
  forward.bytes = bytes_of(o.x, o.a, o.b, o.y, o.y);  // y is read and written
  forward.flops = both_products;
  const Tensor y = o.y.clone();
  forward.run = [=] {
    Context ctx;
    add_lora(ctx, y, o.x, {o.a, o.b, o.scale, o.dropout});
  };
  forward.verify = [=] {
    Context ctx;
    return check_row(add_lora(ctx, o.y.clone(), o.x, {o.a, o.b, o.scale, o.dropout}).value(), o);
  };
  cases.push_back(forward);

  BenchCase both = forward;
  both.variant = cat("forward+backward", kind);
  // Backward: g, x, A and B in, dx out; dA and dB are read and written, because they add.
  both.bytes = forward.bytes + bytes_of(o.g, o.x, o.a, o.b, o.x) +
               2 * static_cast<double>((o.a.numel() + o.b.numel()) * size_of(accumulate_dtype(o.a.dtype())));
  both.flops = 3 * both_products;
  const Var a = Var::leaf(o.a), b = Var::leaf(o.b);
  const auto pass = [=](const Tensor& own_y) {
    Tape tape;
    Context ctx{.tape = &tape};
    const Var x = bench::intermediate(o.x);
    tape.backward(add_lora(ctx, own_y, x, {a, b, o.scale, o.dropout}), o.g);
    return x.node()->take();
  };
  both.run = [=] { pass(y); };
  both.verify = [=] {
    a.node()->clear();
    b.node()->clear();
    return gradients_agree(pass(o.y.clone()), o.x, a, b);
  };
  cases.push_back(both);
}

void add_grouped_case(std::vector<BenchCase>& cases, const BenchOptions& options) {
  const auto [rows, in, rank, out] =
      options.nano ? Sizes{options.emulated ? 128 : 49152, 2688, 16, 1856} : sizes_of(options);
  const std::int64_t experts = options.nano && options.emulated ? 1 : 16;  // of one rank of eight
  std::vector<std::int64_t> offsets;
  for (std::int64_t e = 0; e <= experts; ++e) offsets.push_back(rows * e / experts);
  const Tensor at = Tensor::from(offsets, {experts + 1}).to(options.device),
               x = normal(options, {rows, in}, "x"), y = normal(options, {rows, out}, "y"),
               g = normal(options, {rows, out}, "g");
  const Var a = Var::leaf(normal(options, {experts, rank, in}, "a")),
            b = Var::leaf(normal(options, {experts, out, rank}, "b"));
  const auto pass = [=](const Tensor& own_y) {
    Tape tape;
    Context ctx{.tape = &tape};
    const Var own_x = bench::intermediate(x);
    tape.backward(add_grouped_lora(ctx, own_y, own_x, at, a, b, 2), g);
    return own_x.node()->take();
  };
  const double products = 2.0 * static_cast<double>(rows * rank) * static_cast<double>(in + out);
  cases.push_back({.variant = "grouped forward+backward",
                   .shape = {{"experts", experts}, {"rows", rows}, {"in", in}, {"rank", rank}, {"out", out}},
                   .bytes = bytes_of(x, a.value(), b.value(), y, y) +
                            bytes_of(g, x, a.value(), b.value(), x) +
                            2 * static_cast<double>((a.value().numel() + b.value().numel()) *
                                                    size_of(accumulate_dtype(options.dtype))),
                   .flops = 3 * products,
                   .run = [=] { pass(y); },
                   .verify =
                       [=] {
                         a.node()->clear();
                         b.node()->clear();
                         return gradients_agree(pass(y.clone()), x, a, b);
                       }});
}

std::vector<BenchCase> make_cases(const BenchOptions& options) {
  const auto [rows, in, rank, out] = sizes_of(options);
  Operands o{.x = normal(options, {rows, in}, "x"),
             .y = normal(options, {rows, out}, "y"),
             .a = normal(options, {rank, in}, "a"),
             .b = normal(options, {out, rank}, "b"),
             .g = normal(options, {rows, out}, "g"),
             .dropout = {}};
  std::vector<BenchCase> cases;
  add_cases(cases, "", o);
  std::vector<std::int64_t> numbers;
  for (std::int64_t t = 0; t < rows; ++t) numbers.push_back(t);
  o.dropout = {.probability = 0.1,
               .stream = RandomStream(1, "lora"),
               .row_numbers = Tensor::from(numbers, {rows}).to(options.device)};
  for (const auto& [position, kind] :
       {std::pair(DropoutPosition::pre, ", pre"), std::pair(DropoutPosition::post, ", post")}) {
    o.dropout.position = position;
    if (position == DropoutPosition::post) {
      add_cases(cases, kind, o);
      continue;
    }
    // A row of y has sums of the elements of x that are kept: only the gradients are checked.
    std::vector<BenchCase> of_x;
    add_cases(of_x, kind, o);
    of_x.front().verify = of_x.back().verify;
    cases.insert(cases.end(), of_x.begin(), of_x.end());
  }
  add_grouped_case(cases, options);
  return cases;
}

const RegisterBench registration("lora", make_cases);

}  // namespace
}  // namespace nemocube::lora_bench
