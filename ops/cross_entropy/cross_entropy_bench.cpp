#include <cmath>

#include "core/variants.h"
#include "ops/bench_support.h"
#include "ops/cross_entropy/cross_entropy.h"
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
    tape.backward(loss, Tensor::scalar(1, loss.value().dtype(), Device::cpu));
    return loss.value().to_vector().front();
  }
  double exact() const {
    const Tensor z = Tensor::empty({x.rows(), weight.rows()}, DType::f64, Device::cpu);
    matmul({z, Into::set}, x.to(DType::f64), false, weight.to(DType::f64), true);
    Context ctx;
    return cross_entropy(ctx, z, labels).value().to_vector().front();
  }
};

std::vector<BenchCase> make_cases(const BenchOptions& options) {
  const std::int64_t rows = options.small ? 48 : 2048, in = options.small ? 16 : 512;
  const std::int64_t vocabulary = options.small ? 100 : 8192;
  Problem p;
  p.x = bench::normal({rows, in}, options.dtype, "x");
  p.weight = bench::normal({vocabulary, in}, options.dtype, "weight", 0, 0.05);
  p.leaf = Var::leaf(p.weight);
  std::vector<BenchCase> cases;
  for (const std::int64_t keep : {1, 8})
    for (const char* variant : {"fused", "plain"})
      for (const std::int64_t chunk : {256, 512, 2048}) {
        if (variant[0] == 'p' && chunk != 2048) continue;
        p.choice.by_op["cross_entropy"] = variant;
        p.chunk_rows = chunk;
        std::vector<std::int64_t> labels;
        for (std::int64_t t = 0; t < rows; ++t)
          labels.push_back(t % keep == 0 ? t * 31 % vocabulary : ignored_label);
        p.labels = Tensor::from(labels, {rows});
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

const RegisterBench registration("cross_entropy", make_cases);

}  // namespace
}  // namespace nemocube::cross_entropy_bench
