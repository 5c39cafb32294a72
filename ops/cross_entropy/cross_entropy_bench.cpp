#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/variants.h"
#include "ops/bench_support.h"
#include "ops/cross_entropy/cross_entropy_kernels.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/matmul/matmul.h"

namespace nemocube::cross_entropy_bench {
namespace {

struct Problem {
  Tensor x, weight;
  Labels labels;
  std::int64_t chunk_rows = 0;
  KernelChoice choice;
  Var leaf;

  double step() const {
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    ctx.kernels = &choice;
    const Var loss = linear_cross_entropy(ctx, bench::intermediate(x), leaf, labels, 1.0 / 1024, chunk_rows);
    tape.backward(loss, Tensor::scalar(1, loss.value().dtype(), x.device()));
    return loss.value().to_vector().front();
  }
  double exact() const {
    const auto f64 = [](const Tensor& t) { return t.to(Device::cpu).to(DType::f64); };
    const Tensor z = Tensor::empty({x.rows(), weight.rows()}, DType::f64, Device::cpu);
    matmul({z, Into::set}, f64(x), false, f64(weight), true);
    Context ctx;
    return cross_entropy(ctx, z, labels.to(Device::cpu)).value().to_vector().front();
  }
};

/// Every `keep`-th row has a label.
Labels some_labels(std::int64_t rows, std::int64_t vocabulary, std::int64_t keep, Device device) {
  std::vector<std::int64_t> labels;
  for (std::int64_t t = 0; t < rows; ++t)
    labels.push_back(t % keep == 0 ? t * 31 % vocabulary : ignored_label);
  return Labels(Tensor::from(labels, {rows})).to(device);
}

std::vector<BenchCase> with_lm_head(const BenchOptions& options) {
  const bool few = options.small || options.emulated;
  const std::int64_t rows = few ? 48 : 2048, in = few ? 16 : 512, vocabulary = few ? 100 : 8192;
  Problem p;
  p.x = bench::normal({rows, in}, options.dtype, "x").to(options.device);
  p.weight = bench::normal({vocabulary, in}, options.dtype, "weight", 0, 0.05).to(options.device);
  p.leaf = Var::leaf(p.weight);
  std::vector<BenchCase> cases;
  for (const std::int64_t keep : {1, 8})
    for (const char* variant : {"fused", "plain"})
      for (const std::int64_t chunk : {256, 512, 2048}) {
        if (variant[0] == 'p' && chunk != 2048) continue;
        p.choice.by_op["cross_entropy"] = variant;
        p.chunk_rows = chunk;
        p.labels = some_labels(rows, vocabulary, keep, options.device);
        BenchCase c;
        const std::int64_t labelled = p.labels.count();
        c.variant = cat(variant, " forward+backward");
        c.shape = {
            {"rows", rows}, {"labelled", labelled}, {"in", in}, {"vocabulary", vocabulary}, {"chunk", chunk}};
        // Three products (logits, dx, dW), for labelled rows only.
        c.flops = 6.0 * static_cast<double>(labelled * in) * static_cast<double>(vocabulary);
        // Labelled rows of x, the labels and W in, all of dx out; dW is read and written, because it adds.
        c.bytes = bench::bytes_of(p.x.narrow(0, 0, labelled), p.labels.values, p.weight, p.x) +
                  2 * static_cast<double>(p.weight.numel() * size_of(accumulate_dtype(options.dtype)));
        c.run = [p] { p.step(); };
        c.verify = [p] {
          const double want = p.exact();
          // "plain" rounds bf16 logits.
          const double bound = p.x.dtype() == DType::bf16 ? 0x1p-9 : 1e-6;
          return std::abs(p.step() - want) <= bound * std::abs(want);
        };
        cases.push_back(std::move(c));
      }
  return cases;
}

/// The loss of given logits, and the loss and gradient of a chunk at once.
std::vector<BenchCase> of_logits(const BenchOptions& options) {
  const std::int64_t rows = options.small      ? 8
                            : options.emulated ? 16
                            : options.nano     ? 1024
                                               : 256,
                     vocabulary = options.small                       ? 100
                                  : options.emulated && !options.nano ? 32768
                                                                      : 131072;
  const DType acc = accumulate_dtype(options.dtype);
  const Labels labels = some_labels(rows, vocabulary, 1, options.device);
  const Tensor z = bench::normal(options, {rows, vocabulary}, "logits"), chunk = z.to(acc),
               losses = Tensor::empty({rows}, DType::f64, options.device),
               gradient = Tensor::empty(z.shape(), options.dtype, options.device);
  const auto exact = [z, labels] {
    Context ctx;
    return cross_entropy(ctx, z.to(Device::cpu).to(DType::f64), labels.to(Device::cpu))
        .value()
        .item<double>();
  };
  const auto loss = [z, labels] {
    Tape tape;
    Context ctx{.tape = &tape};
    const Var sum = cross_entropy(ctx, bench::intermediate(z), labels);
    tape.backward(sum, Tensor::scalar(1, sum.value().dtype(), z.device()));
    return sum.value();
  };
  const auto at_once = [=] { softmax_losses_and_gradient(gradient, losses, chunk, labels.values, 1, {}); };
  std::vector<BenchCase> cases(2);
  cases[0].variant = "of logits forward+backward";
  cases[0].bytes = bench::bytes_of(z, labels.values, gradient);
  cases[0].run = loss;
  cases[0].verify = [=] { return bench::close(loss().to_vector().front(), exact(), 1e-5); };
  cases[1].variant = "losses and gradient of a chunk";
  cases[1].bytes = bench::bytes_of(chunk, labels.values, losses, gradient);
  cases[1].run = at_once;
  cases[1].verify = [=] {
    at_once();
    double sum = 0;
    for (const double row : losses.to_vector()) sum += row;
    return bench::close(sum, exact(), 1e-5);
  };
  for (BenchCase& c : cases) c.shape = {{"rows", rows}, {"vocabulary", vocabulary}};
  return cases;
}

std::vector<BenchCase> make_cases(const BenchOptions& options) {
  std::vector<BenchCase> cases = of_logits(options);
  // Nano: the products of its head are cuBLAS's, and the rest is the chunk above.
  if (!options.nano && (!options.device.is_cuda() || runs_on_cuda("matmul")))
    std::ranges::move(with_lm_head(options), std::back_inserter(cases));
  return cases;
}

const RegisterBench registration("cross_entropy", make_cases);

}  // namespace
}  // namespace nemocube::cross_entropy_bench
