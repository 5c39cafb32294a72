#include <cmath>

#include "ops/bench_support.h"
#include "ops/router/router_kernels.h"
#include "ops/router/router_reference.h"

namespace nemocube::router_bench {
namespace {

struct Run {
  Tensor x;
  Var gate;
  Tensor bias, dweights;
  RouterOptions options;
  Sequences sequences;
  Routing routing;
  void forward() {
    Context ctx;
    routing = route(ctx, x, gate.value(), bias, options, sequences);
  }
  void both() {
    Tape tape;
    Context ctx{.tape = &tape};
    routing = route(ctx, bench::intermediate(x), gate, bias, options, sequences);
    tape.backward(routing.weights, dweights);
  }
};

// Compares the first tokens with the plain definition, and checks that the counts add up to k for each token.
bool matches_definition(const Run& run) {
  const std::int64_t n = 8, k = run.options.top_k, tokens = run.x.dim(0);
  const auto want = testing::route_reference(run.x.narrow(0, 0, n), run.gate.value(), run.bias, run.options,
                                             Sequences::uniform(1, n));
  const auto experts = run.routing.choice.experts.to_vector(),
             weights = run.routing.weights.value().to_vector();
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

/// Sizes of a router. With softmax scores there is no bias.
struct Size {
  std::int64_t experts, k, hidden;
  RouterScores scores = RouterScores::sigmoid;
  bool softmax() const { return scores == RouterScores::softmax; }
  RouterOptions options() const {
    return {.experts = experts, .top_k = k, .scores = scores, .scaling = softmax() ? 1 : 2.5};
  }
  std::string name(const char* part) const { return softmax() ? std::string("softmax ") + part : part; }
};

/// The kernels after the product of the logits.
void add_kernels(std::vector<BenchCase>& cases, const BenchOptions& o, const Size& size,
                 std::int64_t tokens) {
  struct Work {
    Tensor logits, bias, dweights, scores, experts, weights, counts, dlogits;
    RouterOptions options;
  };
  const auto w = std::make_shared<Work>();
  const auto& [experts, k, hidden, kind] = size;
  const DType acc = accumulate_dtype(o.dtype);
  const auto normal = [&](const Shape& shape, const char* name, double sigma) {
    return bench::normal(shape, acc, name, 0, sigma).to(o.device);
  };
  w->options = size.options();
  w->logits = normal({tokens, experts}, "logits", 1);
  if (!size.softmax()) w->bias = normal({experts}, "bias", 0.1);
  w->dweights = normal({tokens, k}, "dweights", 1);
  if (uses_scores(w->options, w->bias)) w->scores = Tensor::empty({tokens, experts}, acc, o.device);
  w->experts = Tensor::empty({tokens, k}, DType::i32, o.device);
  w->weights = Tensor::empty({tokens, k}, acc, o.device);
  w->counts = Tensor::zeros({experts}, DType::i64, o.device);
  w->dlogits = Tensor::empty({tokens, experts}, acc, o.device);
  const auto choose = [w] {
    router_choose(w->scores, w->experts, w->weights, w->counts, w->logits, w->bias, w->options, false,
                  Tensor());
  };
  const auto sums_to_scaling = [w, tokens] {
    double sum = 0;
    for (const double weight : w->weights.to_vector()) sum += weight;
    return bench::close(sum / static_cast<double>(tokens), w->options.scaling, 1e-4) &&
           w->experts.to_vector()[0] >= 0;
  };
  choose();
  const BenchShape shape{{"tokens", tokens}, {"experts", experts}, {"top_k", k}};
  const auto bytes = [](const auto&... tensors) {
    return (0.0 + ... + (tensors ? bench::bytes_of(tensors) : 0.0));
  };
  cases.push_back({size.name("choice"), shape,
                   bytes(w->logits, w->bias, w->scores, w->experts, w->weights, w->counts), 0, choose,
                   sums_to_scaling});
  // A normalised weight does not change when the scores of the chosen all grow alike, so their gradients
  // times their scores add up to 0; softmax weights do not when all logits grow.
  const Tensor& values = w->scores ? w->scores : w->weights;
  const auto gradient = [w] {
    router_backward(w->dlogits, w->dweights, w->scores, w->weights, w->experts, w->options, {});
  };
  cases.push_back(
      {size.name("gradient"), shape, bytes(values, w->experts, w->dweights, w->dlogits), 0, gradient, [w] {
         const auto d = w->dlogits.select(0).to_vector();
         double sum = 0;
         for (std::size_t i = 0; i < d.size(); ++i)
           sum += w->scores ? d[i] / (1 - w->scores.select(0).to_vector()[i]) : d[i];
         return bench::close(sum, 0, 1e-4);
       }});
}

void add_cases(std::vector<BenchCase>& cases, const BenchOptions& o, const Size& size) {
  const auto& [experts, k, hidden, kind] = size;
  const std::int64_t tokens = o.small ? 64 : o.emulated ? 512 : o.nano ? 8192 : 4096;
  add_kernels(cases, o, size, tokens);
  // The whole router is mostly a matrix product, and its logits pass through memory.
  if (o.emulated) return;
  const DType acc = accumulate_dtype(o.dtype);
  auto run = std::make_shared<Run>();
  run->x = bench::normal(o, {tokens, hidden}, "x");
  run->gate =
      Var::leaf(bench::normal({experts, hidden}, acc, "gate", 0, 1 / std::sqrt(static_cast<double>(hidden)))
                    .to(o.device));
  if (!size.softmax()) run->bias = bench::normal({experts}, acc, "bias", 0, 0.1).to(o.device);
  run->dweights = bench::normal({tokens, k}, acc, "dweights").to(o.device);
  run->options = size.options();
  run->options.seq_aux_loss_coef = 1e-4;
  run->sequences = Sequences::uniform(tokens / 32, 32);

  const BenchShape shape{{"tokens", tokens}, {"experts", experts}, {"top_k", k}, {"hidden", hidden}};
  const double logits = 2 * static_cast<double>(tokens * experts) * static_cast<double>(hidden);
  // x, gate and bias in; experts (i32) and weights of each token out.
  const Tensor& gate = run->gate.value();
  const double forward = bench::bytes_of(run->x, gate, run->dweights) +
                         static_cast<double>((size.softmax() ? 0 : experts * size_of(acc)) + tokens * k * 4);
  // x, gate and dweights in, dx out; the gradient of the gate is read and written, because it adds.
  const double backward = bench::bytes_of(run->x, gate, run->dweights, run->x) +
                          2 * static_cast<double>(gate.numel() * size_of(acc));
  const auto verify = [run] { return matches_definition(*run); };
  cases.push_back({size.name("forward"), shape, forward, logits, [run] { run->forward(); }, verify});
  cases.push_back(
      {size.name("forward+backward"), shape, forward + backward, 3 * logits, [run] { run->both(); }, verify});
}

std::vector<BenchCase> make_cases(const BenchOptions& o) {
  std::vector<BenchCase> cases;
  if (o.small) {
    add_cases(cases, o, {16, 4, 32});
    add_cases(cases, o, {16, 4, 32, RouterScores::softmax});
  } else {
    add_cases(cases, o, {128, 6, 2688});
    if (!o.nano) add_cases(cases, o, {512, 22, 4096});
    add_cases(cases, o, {128, 8, 2048, RouterScores::softmax});  // Qwen3-30B-A3B
  }
  return cases;
}

const RegisterBench registration("router", make_cases);

}  // namespace
}  // namespace nemocube::router_bench
