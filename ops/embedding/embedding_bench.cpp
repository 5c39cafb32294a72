#include <set>

#include "ops/bench_support.h"
#include "ops/embedding/embedding.h"

namespace nemocube::embedding_bench {
namespace {

struct Run {
  Tensor ids, host_ids, dy;
  Var weight, y;
};

std::vector<BenchCase> make_cases(const BenchOptions& o) {
  const std::int64_t tokens = o.small      ? 64
                              : o.emulated ? 512
                              : o.nano     ? 8192
                                           : 4096,
                     vocabulary = o.small      ? 100
                                  : o.emulated ? 2048
                                               : 32768,
                     cols = o.small ? 32 : 2688;
  auto run = std::make_shared<Run>();
  run->weight = Var::leaf(bench::normal(o, {vocabulary, cols}, "weight"));
  run->dy = Tensor::empty({tokens, cols}, o.dtype, o.device);
  run->dy.fill(1);
  run->host_ids = Tensor::empty({tokens}, DType::i64, Device::cpu);
  const RandomStream stream(1, "ids");
  std::set<std::int64_t> distinct;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto id = static_cast<std::int64_t>(
        stream.below(static_cast<std::uint64_t>(t), static_cast<std::uint64_t>(vocabulary)));
    run->host_ids.data<std::int64_t>()[t] = id;
    distinct.insert(id);
  }
  run->ids = run->host_ids.to(o.device);
  const BenchShape shape{{"tokens", tokens}, {"vocabulary", vocabulary}, {"cols", cols}};
  const auto row = static_cast<double>(cols * size_of(o.dtype)),
             gradient_row = static_cast<double>(cols * size_of(accumulate_dtype(o.dtype)));
  const auto rows_read = static_cast<double>(distinct.size());

  BenchCase forward{"forward", shape};
  forward.bytes = bench::bytes_of(run->ids, run->dy) + rows_read * row;
  forward.run = [run] {
    Context ctx;
    run->y = embedding(ctx, run->ids, run->weight.value());
  };
  forward.verify = [run, tokens] {
    const std::int64_t t = tokens - 1, id = run->host_ids.data<std::int64_t>()[t];
    return run->y.value().select(t).to_vector() == run->weight.value().select(id).to_vector();
  };
  // The gradient exists already and is added to: dy and the ids are read; the gradient rows of the ids are
  // read and written.
  BenchCase backward{"forward+backward", shape};
  backward.bytes = forward.bytes + bench::bytes_of(run->ids, run->dy) + 2 * rows_read * gradient_row;
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
    const std::int64_t id = run->host_ids.data<std::int64_t>()[0];
    double count = 0;
    for (std::int64_t t = 0; t < tokens; ++t) count += run->host_ids.data<std::int64_t>()[t] == id ? 1 : 0;
    for (const double g : run->weight.grad().select(id).to_vector())
      if (g != count) return false;
    return true;
  };
  return {forward, backward};
}

const RegisterBench registration("embedding", make_cases);

}  // namespace
}  // namespace nemocube::embedding_bench
