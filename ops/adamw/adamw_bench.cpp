#include <cmath>

#include "core/rng.h"
#include "ops/adamw/adamw.h"
#include "ops/bench.h"

namespace nemocube {
namespace {

struct Run {
  Tensor w, m, v, grad, copy;
  AdamWOptions options{.lr = 1e-3, .weight_decay = 0.1, .step = 10, .grad_scale = 0.5};
  void step() const { adamw_step(w, m, v, grad, copy, options); }
};

bool matches_definition(const Run& run) {
  const std::int64_t n = run.w.numel() < 1000 ? run.w.numel() : 1000;
  const auto head = [n](const Tensor& t) { return t.narrow(0, 0, n).to_vector(); };
  const auto w = head(run.w), m = head(run.m), v = head(run.v), g = head(run.grad);
  run.step();
  const auto got = head(run.w);
  const AdamWOptions& o = run.options;
  for (std::size_t i = 0; i < w.size(); ++i) {
    const double grad = o.grad_scale * g[i];
    const double mean = (o.beta1 * m[i] + (1 - o.beta1) * grad) / (1 - std::pow(o.beta1, 10));
    const double square = (o.beta2 * v[i] + (1 - o.beta2) * grad * grad) / (1 - std::pow(o.beta2, 10));
    const double want = w[i] * (1 - o.lr * o.weight_decay) - o.lr * mean / (std::sqrt(square) + o.eps);
    if (!(std::abs(got[i] - want) <= 1e-6 * (1 + std::abs(want)))) return false;
  }
  return true;
}

std::vector<BenchCase> make_cases(const BenchOptions& o) {
  const std::int64_t n = o.small ? 10000 : 50'000'000;
  const DType dtype = accumulate_dtype(o.dtype);
  auto run = std::make_shared<Run>();
  for (Tensor* t : {&run->w, &run->m, &run->v, &run->grad}) *t = Tensor::zeros({n}, dtype);
  fill_uniform(run->w, RandomStream(1, "w"), -1, 1);
  fill_uniform(run->grad, RandomStream(1, "grad"), -1, 1);
  if (o.dtype == DType::bf16) run->copy = Tensor::zeros({n}, DType::bf16);
  const auto count = static_cast<double>(n);
  // Reads w, m, v, grad; writes w, m, v and the copy.
  const double bytes = count * (7 * static_cast<double>(size_of(dtype)) + (run->copy.defined() ? 2 : 0));
  return {{run->copy.defined() ? "with bf16 copy" : "master only", cat("elements=", n), bytes, 15 * count,
           [run] { run->step(); }, [run] { return matches_definition(*run); }}};
}

const RegisterBench bench("adamw", make_cases);

}  // namespace
}  // namespace nemocube
