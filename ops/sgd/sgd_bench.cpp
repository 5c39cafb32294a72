#include "ops/optimizer_bench.h"
#include "ops/sgd/sgd.h"

namespace nemocube::sgd_bench {
namespace {

const SgdOptions options{.lr = 1e-4, .momentum = 0.9};

void step(const bench::OptimizerTensors& t) {
  const SgdRange range{t.master, t.states[0], t.grad, t.model_copy};
  sgd_step({&range, 1}, options, sgd_schedule(options).to(t.master.device()), t.gate);
}

double definition(double master, double grad, std::span<const double> states) {
  return master - options.lr * (options.momentum * states[0] + bench::grad_scale * grad);
}

const RegisterBench registration("sgd", [](const BenchOptions& o) {
  return bench::optimizer_cases(o, 1, step, definition);
});

}  // namespace
}  // namespace nemocube::sgd_bench
