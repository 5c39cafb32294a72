#include <doctest/doctest.h>

#include "parallel/context_parallel/dealt_heads.h"
#include "parallel/context_parallel/mamba_core.h"
#include "parallel/context_parallel/test_support.h"
#include "tests/support/compare.h"
#include "tests/support/ranks.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

/// Parameters are leaves; `core` has them too.
struct Problem {
  Problem(std::int64_t groups, DType dtype, bool bias) {
    core.scan.heads = 24;
    core.scan.head_dim = 2;
    core.scan.groups = groups;
    core.scan.state_size = 3;
    core.scan.chunk_size = 8;
    const std::int64_t channels = core.inner() + 2 * core.group_width();
    const auto leaf = [&](const Shape& shape, DType d) {
      parameters.push_back(Var::leaf(random_tensor(shape, d, 10 + parameters.size(), 0.5)));
      return parameters.back();
    };
    core.conv_weight = leaf({channels, 1, 4}, dtype);
    if (bias) core.conv_bias = leaf({channels}, dtype);
    core.a_log = leaf({24}, accumulate_dtype(dtype));
    core.d = leaf({24}, accumulate_dtype(dtype));
    core.dt_bias = leaf({24}, accumulate_dtype(dtype));
  }
  MambaCore core;
  std::vector<Var> parameters;
};

struct Outcome {
  Tensor y, dxbc, ddt;
};

Outcome run(const MambaCoreRunner& runner, const MambaCore& core, const Sequences& whole,
            const std::array<Tensor, 3>& inputs) {
  Tape tape;
  Context ctx{.tape = &tape};
  const Var xbc = intermediate(inputs[0]), dt = intermediate(inputs[1]);
  const Var y = runner(ctx, core, xbc, dt, whole);
  tape.backward(y, inputs[2]);
  return {y.value(), xbc.node()->grad(), dt.node()->grad()};
}

/// xBC, dt and the gradient of y.
std::array<Tensor, 3> inputs_of(const MambaCore& core, std::int64_t rows, DType dtype) {
  return {random_tensor({rows, core.inner() + 2 * core.group_width()}, dtype, 1),
          random_tensor({rows, core.scan.heads}, dtype, 2), random_tensor({rows, core.inner()}, dtype, 3)};
}

Outcome on_one_device(const MambaCore& core, const Sequences& whole, const std::array<Tensor, 3>& inputs) {
  return run([](Context& ctx, const MambaCore& c, const Var& xbc, const Var& dt,
                const Sequences& s) { return c(ctx, xbc, dt, s); },
             core, whole, inputs);
}

bool fits(std::int64_t groups, std::int64_t cp) { return groups % cp == 0 || cp % groups == 0; }

}  // namespace

TEST_CASE("context parallel Mamba: result and gradients of one device") {
  Communicator& cp = test_world().communicator();
  for (const std::int64_t groups : {1, 2, 3, 4, 24})
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
      for (const std::vector<std::int64_t>& lengths : uneven_microbatches) {
        CAPTURE(groups);
        CAPTURE(dtype);
        CAPTURE(lengths.size());
        const Sequences whole = Sequences::of_lengths(lengths);
        Problem alone(groups, dtype, groups != 2), shared(groups, dtype, groups != 2);
        const auto inputs = inputs_of(alone.core, whole.tokens(), dtype);
        const std::array own{own_rows(inputs[0], whole, cp), own_rows(inputs[1], whole, cp),
                             own_rows(inputs[2], whole, cp)};
        if (!fits(groups, cp.size())) {
          CHECK_THROWS_AS(run(context_parallel_mamba(cp), shared.core, whole, own), Error);
          continue;
        }
        const Outcome want = on_one_device(alone.core, whole, inputs),
                      got = run(context_parallel_mamba(cp), shared.core, whole, own);
        const double tolerance = dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 1e-5 : 0x1p-6;
        CHECK(got.y.dtype() == dtype);
        CHECK(relative_error(got.y, own_rows(want.y, whole, cp)) < tolerance);
        CHECK(relative_error(got.ddt, own_rows(want.ddt, whole, cp)) < tolerance);
        CHECK(relative_error(got.dxbc, own_rows(want.dxbc, whole, cp)) < tolerance);
        for (std::size_t i = 0; i < alone.parameters.size(); ++i) {
          CAPTURE(i);
          const Tensor sum = shared.parameters[i].grad();
          CHECK(sum.dtype() == accumulate_dtype(dtype));
          cp.all_reduce(sum);
          CHECK(relative_error(sum, alone.parameters[i].grad()) < tolerance);
        }
      }
}

TEST_CASE("context parallel Mamba: a second microbatch, deferred weight work, the same bits every time") {
  Communicator& cp = test_world().communicator();
  const Sequences whole = Sequences::of_lengths(uneven_microbatches[0]);
  const Problem once(24, DType::f32, true), twice(24, DType::f32, true);
  const auto inputs =
      inputs_of(once.core, SequenceCut(whole, cp.size(), cp.rank()).local().tokens(), DType::f32);
  run(context_parallel_mamba(cp), once.core, whole, inputs);
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    Tape tape;
    tape.defer_weight_work();
    Context ctx{.tape = &tape};
    const Var y = context_parallel_mamba(cp)(ctx, twice.core, inputs[0], inputs[1], whole);
    tape.backward(y, inputs[2]);
    tape.run_weight_work();
    for (std::size_t i = 0; i < once.parameters.size(); ++i) {
      const auto got = twice.parameters[i].grad().to_vector(), want = once.parameters[i].grad().to_vector();
      CHECK(std::ranges::equal(got, want, [&](double a, double b) { return a == (microbatch + 1) * b; }));
    }
  }
}

TEST_CASE("context parallel Mamba: one rank has the bits of the core; elements sent") {
  Communicator& cp = test_world().communicator();
  const auto self = self_communicator("cp", 0);
  for (const std::vector<std::int64_t>& lengths : uneven_microbatches) {
    const Sequences whole = Sequences::of_lengths(lengths);
    Problem alone(24, DType::f32, true), shared(24, DType::f32, true);
    const auto inputs = inputs_of(alone.core, whole.tokens(), DType::f32);
    const Outcome want = on_one_device(alone.core, whole, inputs),
                  got = run(context_parallel_mamba(*self), shared.core, whole, inputs);
    CHECK_BITS(got.y, want.y);
    CHECK_BITS(got.dxbc, want.dxbc);
    for (std::size_t i = 0; i < alone.parameters.size(); ++i)
      CHECK_BITS(shared.parameters[i].grad(), alone.parameters[i].grad());
  }
  for (const std::int64_t groups : {1, 4, 24}) {
    if (!fits(groups, cp.size())) continue;
    const Problem problem(groups, DType::f32, true);
    const Sequences whole = Sequences::of_lengths(uneven_microbatches[0]);
    const std::int64_t tokens = whole.tokens(), c = cp.size();
    const Tensor bytes = Tensor::from(std::vector{-cp.stats(Operation::all_to_all).bytes_sent}, {1});
    run(context_parallel_mamba(cp), problem.core, whole,
        inputs_of(problem.core, SequenceCut(whole, c, cp.rank()).local().tokens(), DType::f32));
    *bytes.data<std::int64_t>() += cp.stats(Operation::all_to_all).bytes_sent;
    cp.all_reduce(bytes);
    const ScanHeadCut cut = cut_scan_heads(24, groups, c, mamba_words);
    CHECK(bytes.item<std::int64_t>() ==
          2 * 4 * (c - 1) * tokens * (2 * cut.heads * 2 + 2 * cut.groups * 3 + cut.heads));
  }
}
