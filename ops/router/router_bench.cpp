#include <cmath>

#include "core/rng.h"
#include "ops/bench.h"
#include "ops/router/router.h"
#include "ops/router/router_reference.h"

namespace nemocube {
namespace {

struct Run {
  Var x, gate;
  Tensor bias, dweights;
  RouterOptions options;
  Sequences sequences;
  Routing routing;
  void forward(Context& ctx) { routing = route(ctx, x, gate, bias, options, sequences); }
};

// The first tokens against the plain definition, and the books: k choices for each token.
bool matches_definition(const Run& run) {
  const std::int64_t n = 8, k = run.options.top_k, tokens = run.x.value().dim(0);
  const auto want = testing::route_reference(run.x.value().narrow(0, 0, n), run.gate.value(), run.bias,
                                             run.options, Sequences::uniform(1, n));
  const auto experts = run.routing.experts.to_vector(), weights = run.routing.weights.value().to_vector();
  for (std::size_t t = 0; t < static_cast<std::size_t>(n); ++t)
    for (std::size_t j = 0; j < static_cast<std::size_t>(k); ++j) {
      const std::size_t at = t * static_cast<std::size_t>(k) + j;
      if (experts[at] != static_cast<double>(want.experts[t][j])) return false;
      if (!(std::abs(weights[at] - want.weights[t][j]) <= 1e-4)) return false;
    }
  double total = 0;
  for (const double c : run.routing.counts.to_vector()) total += c;
  return total == static_cast<double>(tokens * k);
}

void add_cases(std::vector<BenchCase>& cases, const BenchOptions& o, std::int64_t experts, std::int64_t k,
               std::int64_t hidden) {
  const std::int64_t tokens = o.small ? 64 : 4096;
  const DType acc = accumulate_dtype(o.dtype);
  auto run = std::make_shared<Run>();
  const auto filled = [](const Shape& shape, DType dtype, const char* name, double sigma) {
    Tensor t = Tensor::empty(shape, dtype);
    fill_normal(t, RandomStream(1, name), 0, sigma);
    return t;
  };
  run->x = Var::leaf(filled({tokens, hidden}, o.dtype, "x", 1));
  run->gate =
      Var::leaf(filled({experts, hidden}, o.dtype, "gate", 1 / std::sqrt(static_cast<double>(hidden))));
  run->bias = filled({experts}, acc, "bias", 0.1);
  run->dweights = filled({tokens, k}, acc, "dweights", 1);
  run->options = {.experts = experts, .top_k = k, .scaling = 2.5, .seq_aux_loss_coef = 1e-4};
  run->sequences = Sequences::uniform(tokens / 32, 32);

  const std::string shape = cat("tokens=", tokens, " experts=", experts, " top_k=", k, " hidden=", hidden);
  const auto t = static_cast<double>(tokens), e = static_cast<double>(experts),
             h = static_cast<double>(hidden);
  const double inputs = (t + e) * h * static_cast<double>(size_of(o.dtype));
  const double gradients = (t + e) * h * static_cast<double>(size_of(acc));
  cases.push_back({"forward", shape, inputs, 2 * t * e * h,
                   [run] {
                     Context ctx;
                     run->forward(ctx);
                   },
                   [run] { return matches_definition(*run); }});
  // Leaves add: the gradients are read and written.
  cases.push_back({"forward + backward", shape, 2 * inputs + 2 * gradients, 6 * t * e * h,
                   [run] {
                     Tape tape;
                     Context ctx{.tape = &tape};
                     run->forward(ctx);
                     tape.backward(run->routing.weights, run->dweights);
                   },
                   [run] { return matches_definition(*run); }});
}

std::vector<BenchCase> make_cases(const BenchOptions& o) {
  std::vector<BenchCase> cases;
  if (o.small) {
    add_cases(cases, o, 16, 4, 32);
  } else {
    add_cases(cases, o, 128, 6, 2688);
    add_cases(cases, o, 512, 22, 4096);
  }
  return cases;
}

const RegisterBench bench("router", make_cases);

}  // namespace
}  // namespace nemocube
