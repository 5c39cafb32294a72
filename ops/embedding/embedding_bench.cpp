#include "core/rng.h"
#include "ops/bench.h"
#include "ops/embedding/embedding.h"

namespace nemocube {
namespace {

struct Run {
  Tensor ids, dy;
  Var weight, y;
};

std::vector<BenchCase> make_cases(const BenchOptions& o) {
  const std::int64_t tokens = o.small ? 64 : 4096, vocabulary = o.small ? 100 : 32768,
                     cols = o.small ? 32 : 2688;
  auto run = std::make_shared<Run>();
  run->weight = Var::leaf(Tensor::empty({vocabulary, cols}, o.dtype));
  fill_normal(run->weight.value(), RandomStream(1, "weight"), 0, 1);
  run->dy = Tensor::empty({tokens, cols}, o.dtype);
  run->dy.fill(1);
  run->ids = Tensor::empty({tokens}, DType::i64);
  const RandomStream stream(1, "ids");
  for (std::int64_t t = 0; t < tokens; ++t)
    run->ids.data<std::int64_t>()[t] = static_cast<std::int64_t>(
        stream.below(static_cast<std::uint64_t>(t), static_cast<std::uint64_t>(vocabulary)));
  const std::string shape = cat("tokens=", tokens, " vocabulary=", vocabulary, " cols=", cols);
  const auto n = static_cast<double>(tokens * cols);
  const auto element = static_cast<double>(size_of(o.dtype));
  const auto acc = static_cast<double>(size_of(accumulate_dtype(o.dtype)));

  BenchCase forward{"forward", shape, 2 * n * element, 0, {}, {}};
  forward.run = [run] {
    Context ctx;
    run->y = embedding(ctx, run->ids, run->weight.value());
  };
  forward.verify = [run, tokens] {
    const std::int64_t t = tokens - 1, id = run->ids.data<std::int64_t>()[t];
    return run->y.value().select(t).to_vector() == run->weight.value().select(id).to_vector();
  };
  // Adds to a gradient that exists: reads dy, reads and writes one gradient row for each token.
  BenchCase backward{"forward + backward", shape, n * (3 * element + 2 * acc), n, {}, {}};
  backward.run = [run] {
    Tape tape;
    Context ctx{.tape = &tape};
    run->y = embedding(ctx, run->ids, run->weight);
    tape.backward(run->y, run->dy);
  };
  backward.verify = [run, tokens] {
    run->weight.node()->clear();
    Tape tape;
    Context ctx{.tape = &tape};
    tape.backward(embedding(ctx, run->ids, run->weight), run->dy);
    const std::int64_t id = run->ids.data<std::int64_t>()[0];
    double count = 0;
    for (std::int64_t t = 0; t < tokens; ++t) count += run->ids.data<std::int64_t>()[t] == id ? 1 : 0;
    for (const double g : run->weight.grad().select(id).to_vector())
      if (g != count) return false;
    return true;
  };
  return {forward, backward};
}

const RegisterBench bench("embedding", make_cases);

}  // namespace
}  // namespace nemocube
