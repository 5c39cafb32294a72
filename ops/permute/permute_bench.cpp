#include "ops/bench_support.h"
#include "ops/permute/permute.h"

namespace nemocube::permute_bench {
namespace {

struct Run {
  Permutation permutation;
  Tensor chosen, x, rows, weights, dy, dx;
  Var y;
};

// The sum of one column of the combined rows, in f64, against the same sum over the inputs.
bool sums_agree(const Run& run) {
  const auto w = run.weights.to_vector(), r = run.rows.narrow(1, 0, 1).to_vector();
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

// The first columns have the same sum, but for rounding of a result.
bool column_sums_agree(const Tensor& rows, const Tensor& sums) {
  double want = 0, got = 0, size = 0;
  for (const double v : rows.narrow(1, 0, 1).to_vector()) {
    want += v;
    size += v < 0 ? -v : v;
  }
  for (const double v : sums.narrow(1, 0, 1).to_vector()) got += v;
  const double error = got < want ? want - got : got - want;
  return error <= 0.01 * size;
}

std::vector<BenchCase> make_cases(const BenchOptions& o) {
  const std::int64_t tokens = o.small      ? 64
                              : o.emulated ? 128
                              : o.nano     ? 8192
                                           : 4096,
                     choices = 6, experts = o.small ? 8 : 128, cols = o.small ? 32 : 2688,
                     rows = tokens * choices;
  auto run = std::make_shared<Run>();
  const DType acc = accumulate_dtype(o.dtype);
  run->x = bench::normal(o, {tokens, cols}, "x");
  run->rows = bench::normal(o, {rows, cols}, "rows");
  run->weights = bench::normal({tokens, choices}, acc, "weights").to(o.device);
  run->dy = bench::normal(o, {tokens, cols}, "dy");
  Tensor chosen = Tensor::empty({tokens, choices}, DType::i32, Device::cpu);
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t j = 0; j < choices; ++j)
      chosen.row<std::int32_t>(t)[j] = static_cast<std::int32_t>((t * 37 + j * (1 + t % 5)) % experts);
  run->chosen = chosen.to(o.device);
  run->permutation = make_permutation(run->chosen, experts);

  const BenchShape shape{{"tokens", tokens}, {"choices", choices}, {"experts", experts}, {"cols", cols}};
  const Permutation& p = run->permutation;
  std::vector<BenchCase> cases;
  cases.push_back({"permute forward", shape, bench::bytes_of(run->x, p.source, run->rows), 0,
                   [run] {
                     Context ctx;
                     run->y = permute(ctx, run->x, run->permutation);
                   },
                   [run, rows] {
                     const auto t = run->permutation.source.to_vector();
                     const auto last = static_cast<std::int64_t>(t.back());
                     return run->y.value().select(rows - 1).to_vector() == run->x.select(last).to_vector();
                   }});
  // The gradients of the rows and the slots in, dx out.
  cases.push_back({"permute forward+backward", shape,
                   bench::bytes_of(run->x, p.source, run->rows) + bench::bytes_of(run->rows, p.slot, run->x),
                   0,
                   [run] {
                     Tape tape;
                     Context ctx{.tape = &tape};
                     const Var x = bench::intermediate(run->x);
                     run->y = permute(ctx, x, run->permutation);
                     tape.backward(run->y, run->rows);
                     run->dx = x.grad();
                   },
                   [run] { return column_sums_agree(run->rows, run->dx); }});
  // The chosen experts in, offsets, sources and slots out.
  cases.push_back({"order", shape, bench::bytes_of(run->chosen, p.offsets, p.source, p.slot), 0,
                   [run, experts] { run->permutation = make_permutation(run->chosen, experts); },
                   [run, rows] {
                     const auto chosen_by = run->chosen.to_vector(), slot = run->permutation.slot.to_vector(),
                                offsets = run->permutation.offsets.to_vector();
                     for (std::size_t i = 0; i < slot.size(); ++i) {
                       const auto e = static_cast<std::size_t>(chosen_by[i]);
                       if (slot[i] < offsets[e] || slot[i] >= offsets[e + 1]) return false;
                     }
                     return offsets.back() == static_cast<double>(rows);
                   }});
  const double forward = bench::bytes_of(run->rows, run->weights, p.slot, run->dy);
  cases.push_back({"unpermute forward", shape, forward, 0,
                   [run] {
                     Context ctx;
                     run->y = unpermute(ctx, run->rows, run->weights, run->permutation);
                   },
                   [run] { return sums_agree(*run); }});
  // dy, rows, weights and slots in, the gradients of rows and weights out.
  cases.push_back({"unpermute forward+backward", shape,
                   forward + forward + bench::bytes_of(run->rows, run->weights), 0,
                   [run] {
                     Tape tape;
                     Context ctx{.tape = &tape};
                     run->y = unpermute(ctx, bench::intermediate(run->rows),
                                        bench::intermediate(run->weights), run->permutation);
                     tape.backward(run->y, run->dy);
                   },
                   [run] { return sums_agree(*run); }});
  return cases;
}

const RegisterBench registration("permute", make_cases);

}  // namespace
}  // namespace nemocube::permute_bench
