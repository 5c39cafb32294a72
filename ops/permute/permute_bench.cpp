#include "core/rng.h"
#include "ops/bench.h"
#include "ops/permute/permute.h"

namespace nemocube {
namespace {

struct Run {
  Permutation permutation;
  Var x, rows, weights, y;
  Tensor dx, drows;
};

// The sum of one column of the combined rows, in f64, against the same sum over the inputs.
bool sums_agree(const Run& run) {
  const auto w = run.weights.value().to_vector(), r = run.rows.value().narrow(1, 0, 1).to_vector();
  const auto slot = run.permutation.slot.to_vector(), y = run.y.value().narrow(1, 0, 1).to_vector();
  double want = 0, got = 0, size = 0;
  for (std::size_t i = 0; i < slot.size(); ++i) {
    const double term = w[i] * r[static_cast<std::size_t>(slot[i])];
    want += term;
    size += term < 0 ? -term : term;
  }
  for (const double v : y) got += v;
  const double error = got < want ? want - got : got - want;
  return error <= 0.01 * size;
}

std::vector<BenchCase> make_cases(const BenchOptions& o) {
  const std::int64_t tokens = o.small ? 64 : 4096, choices = 6, experts = o.small ? 8 : 128,
                     cols = o.small ? 32 : 2688, rows = tokens * choices;
  auto run = std::make_shared<Run>();
  const DType acc = accumulate_dtype(o.dtype);
  const auto filled = [](const Shape& shape, DType dtype, const char* name) {
    Tensor t = Tensor::empty(shape, dtype);
    fill_normal(t, RandomStream(1, name), 0, 1);
    return t;
  };
  run->x = Var::leaf(filled({tokens, cols}, o.dtype, "x"));
  run->rows = Var::leaf(filled({rows, cols}, o.dtype, "rows"));
  run->weights = Var::leaf(filled({tokens, choices}, acc, "weights"));
  run->dx = filled({tokens, cols}, o.dtype, "dx");
  run->drows = filled({rows, cols}, o.dtype, "drows");
  Tensor chosen = Tensor::empty({tokens, choices}, DType::i32);
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t j = 0; j < choices; ++j)
      chosen.row<std::int32_t>(t)[j] = static_cast<std::int32_t>((t * 37 + j * (1 + t % 5)) % experts);
  run->permutation = make_permutation(chosen, experts);

  const std::string shape =
      cat("tokens=", tokens, " choices=", choices, " experts=", experts, " cols=", cols);
  const auto n = static_cast<double>(rows * cols), element = static_cast<double>(size_of(o.dtype)),
             wide = static_cast<double>(size_of(acc)), share = 1.0 / static_cast<double>(choices);
  std::vector<BenchCase> cases;
  cases.push_back({"permute forward", shape, n * element * (1 + share), 0,
                   [run] {
                     Context ctx;
                     run->y = permute(ctx, run->x.value(), run->permutation);
                   },
                   [run, rows] {
                     const auto t = run->permutation.source.to_vector();
                     const auto last = static_cast<std::int64_t>(t.back());
                     return run->y.value().select(rows - 1).to_vector() ==
                            run->x.value().select(last).to_vector();
                   }});
  cases.push_back({"unpermute forward", shape, n * element * (1 + share), 2 * n,
                   [run] {
                     Context ctx;
                     run->y = unpermute(ctx, run->rows.value(), run->weights.value(), run->permutation);
                   },
                   [run] { return sums_agree(*run); }});
  // Leaves add: reads dy, rows and both gradients, writes both gradients (and y in the forward pass).
  cases.push_back({"unpermute forward + backward", shape, n * (element * (2 + 2 * share) + 2 * wide), 6 * n,
                   [run] {
                     Tape tape;
                     Context ctx{.tape = &tape};
                     run->y = unpermute(ctx, run->rows, run->weights, run->permutation);
                     tape.backward(run->y, run->dx);
                   },
                   [run] { return sums_agree(*run); }});
  return cases;
}

const RegisterBench bench("permute", make_cases);

}  // namespace
}  // namespace nemocube
