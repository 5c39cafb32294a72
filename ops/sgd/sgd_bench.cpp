#include <cmath>

#include "core/rng.h"
#include "ops/bench.h"
#include "ops/sgd/sgd.h"

namespace nemocube {
namespace {

struct Run {
  Tensor w, buffer, grad, copy;
  SgdOptions options{.lr = 1e-4, .momentum = 0.9, .grad_scale = 0.5};
  void step() const { sgd_step(w, buffer, grad, copy, options); }
};

bool matches_definition(const Run& run) {
  const std::int64_t n = run.w.numel() < 1000 ? run.w.numel() : 1000;
  const auto head = [n](const Tensor& t) { return t.narrow(0, 0, n).to_vector(); };
  const auto w = head(run.w), buffer = head(run.buffer), g = head(run.grad);
  run.step();
  const auto got = head(run.w);
  const SgdOptions& o = run.options;
  for (std::size_t i = 0; i < w.size(); ++i) {
    const double want = w[i] - o.lr * (o.momentum * buffer[i] + o.grad_scale * g[i]);
    if (!(std::abs(got[i] - want) <= 1e-6 * (1 + std::abs(want)))) return false;
  }
  return true;
}

std::vector<BenchCase> make_cases(const BenchOptions& o) {
  const std::int64_t n = o.small ? 10000 : 50'000'000;
  const DType dtype = accumulate_dtype(o.dtype);
  auto run = std::make_shared<Run>();
  for (Tensor* t : {&run->w, &run->buffer, &run->grad}) *t = Tensor::zeros({n}, dtype);
  fill_uniform(run->w, RandomStream(1, "w"), -1, 1);
  fill_uniform(run->grad, RandomStream(1, "grad"), -1, 1);
  if (o.dtype == DType::bf16) run->copy = Tensor::zeros({n}, DType::bf16);
  const auto count = static_cast<double>(n);
  // Reads w, buffer, grad; writes w, buffer and the copy.
  const double bytes = count * (5 * static_cast<double>(size_of(dtype)) + (run->copy.defined() ? 2 : 0));
  return {{run->copy.defined() ? "with bf16 copy" : "master only", cat("elements=", n), bytes, 7 * count,
           [run] { run->step(); }, [run] { return matches_definition(*run); }}};
}

const RegisterBench bench("sgd", make_cases);

}  // namespace
}  // namespace nemocube
