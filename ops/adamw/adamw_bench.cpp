#include <cmath>

#include "ops/adamw/adamw.h"
#include "ops/optimizer_bench.h"

namespace nemocube::adamw_bench {
namespace {

const AdamWOptions options{.lr = 1e-3, .weight_decay = 0.1, .step = 10};

void step(const bench::OptimizerTensors& t) {
  const AdamWRange range{t.master, t.states[0], t.states[1], t.grad, t.model_copy};
  adamw_step({&range, 1}, options, adamw_schedule(options).to(t.master.device()), t.gate);
}

double definition(double master, double grad, std::span<const double> states) {
  const auto t = static_cast<double>(options.step);
  const double g = bench::grad_scale * grad;
  const double mean =
      (options.beta1 * states[0] + (1 - options.beta1) * g) / (1 - std::pow(options.beta1, t));
  const double square =
      (options.beta2 * states[1] + (1 - options.beta2) * g * g) / (1 - std::pow(options.beta2, t));
  return master * (1 - options.lr * options.weight_decay) -
         options.lr * mean / (std::sqrt(square) + options.eps);
}

const RegisterBench registration("adamw", [](const BenchOptions& o) {
  return bench::optimizer_cases(o, 2, step, definition);
});

}  // namespace
}  // namespace nemocube::adamw_bench
