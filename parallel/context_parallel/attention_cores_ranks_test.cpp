#include "parallel/context_parallel/attention_cores.h"

#include <doctest/doctest.h>

#include "core/allocator.h"
#include "core/variants.h"
#include "parallel/context_parallel/test_support.h"
#include "tests/support/compare.h"
#include "tests/support/ranks.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

using Lengths = std::vector<std::int64_t>;

struct Outcome {
  Tensor o, dq, dk, dv;
};

/// Every rank knows the whole microbatch.
struct Batch {
  Batch(const AttentionOptions& o, const Lengths& lengths, DType dtype)
      : options(o), sequences(Sequences::of_lengths(lengths)) {
    const Shape wide{sequences.tokens(), o.heads * o.head_dim},
        narrow{sequences.tokens(), o.kv_heads * o.head_dim};
    inputs = {random_tensor(wide, dtype, 1), random_tensor(narrow, dtype, 2), random_tensor(narrow, dtype, 3),
              random_tensor(wide, dtype, 4)};
  }
  AttentionOptions options;
  Sequences sequences;
  std::array<Tensor, 4> inputs;  // q, k, v and the gradient of o
};

Outcome run(const AttentionCore& core, const Batch& batch, const std::array<Tensor, 4>& inputs,
            const KernelChoice* kernels = nullptr, bool wants_keys = true,
            const AttentionOptions* own = nullptr) {
  Tape tape;
  Context ctx{.tape = &tape, .kernels = kernels};
  std::array<Var, 3> x;
  for (std::size_t i = 0; i < 3; ++i) x[i] = i == 0 || wants_keys ? intermediate(inputs[i]) : Var(inputs[i]);
  const Var o = core(ctx, x[0], x[1], x[2], own ? *own : batch.options, batch.sequences);
  CHECK(tape.size() == 1);
  tape.backward(o, inputs[3]);
  const auto gradient = [](const Var& v) { return v.needs_grad() ? v.node()->grad() : Tensor(); };
  return {o.value(), gradient(x[0]), gradient(x[1]), gradient(x[2])};
}

Outcome on_one_device(const Batch& batch) {
  return run([](Context& ctx, const Var& q, const Var& k, const Var& v, const AttentionOptions& options,
                const Sequences& s) { return attention(ctx, q, k, v, options, s, s); },
             batch, batch.inputs);
}

std::array<Tensor, 4> own_inputs(const Batch& batch, const Communicator& cp) {
  std::array<Tensor, 4> own;
  for (std::size_t i = 0; i < own.size(); ++i) own[i] = own_rows(batch.inputs[i], batch.sequences, cp);
  return own;
}

/// With the query_scale of the rank's rows.
AttentionOptions own_options(const Batch& batch, const Communicator& cp) {
  AttentionOptions own = batch.options;
  const std::int64_t rows = batch.sequences.tokens();
  if (!own.query_scale) return own;
  const Tensor scale = own_rows(own.query_scale.reshape({rows, 1}), batch.sequences, cp);
  own.query_scale = scale.reshape({scale.dim(0)});
  return own;
}

struct Core {
  const char* name;
  AttentionCore (*make)(Communicator&);
  Operation forward_operation;
};
constexpr std::array cores{Core{"ring", &ring_attention, Operation::exchange},
                           Core{"all-gather", &all_gather_attention, Operation::all_gather}};

}  // namespace

TEST_CASE("context parallel attention: result and gradients of one device") {
  Communicator& cp = test_world().communicator();
  for (const Core& core : cores)
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
      for (const AttentionOptions& options :
           {AttentionOptions{4, 2, 8}, AttentionOptions{3, 1, 5, 0.7}, AttentionOptions{2, 2, 8, 0, false}})
        for (const Lengths& lengths : uneven_microbatches) {
          CAPTURE(core.name);
          CAPTURE(dtype);
          CAPTURE(lengths.size());
          const Batch batch(options, lengths, dtype);
          const Outcome want = on_one_device(batch), got = run(core.make(cp), batch, own_inputs(batch, cp));
          // bf16: o and the gradients are rounded once, delta is formed from the rounded o.
          const double tolerance = dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 1e-5 : 0x1p-6;
          CHECK(got.o.dtype() == dtype);
          CHECK(relative_error(got.o, own_rows(want.o, batch.sequences, cp)) < tolerance);
          CHECK(relative_error(got.dq, own_rows(want.dq, batch.sequences, cp)) < tolerance);
          CHECK(relative_error(got.dk, own_rows(want.dk, batch.sequences, cp)) < tolerance);
          CHECK(relative_error(got.dv, own_rows(want.dv, batch.sequences, cp)) < tolerance);
        }
}

TEST_CASE("context parallel attention: window, softcap, slopes and query_scale") {
  Communicator& cp = test_world().communicator();
  const Tensor slopes = Tensor::from(std::vector<float>{0.3F, 0.2F, 0.02F, 0}, {4});
  for (const Core& core : cores)
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
      for (const char* variant : {"tiled", "plain"})
        for (const AttentionOptions& options :
             {AttentionOptions{.window = 1}, AttentionOptions{.window = 23}, AttentionOptions{.window = 1000},
              AttentionOptions{.slopes = slopes}, AttentionOptions{.softcap = 0.8},
              AttentionOptions{.window = 50, .softcap = 0.8, .slopes = slopes},
              AttentionOptions{.causal = false, .softcap = 0.8, .slopes = slopes}})
          for (const Lengths& lengths : uneven_microbatches) {
            CAPTURE(core.name);
            CAPTURE(dtype);
            CAPTURE(variant);
            CAPTURE(options.window);
            CAPTURE(lengths.size());
            Batch batch({4, 2, 8}, lengths, dtype);
            batch.options.causal = options.causal;
            batch.options.window = options.window;
            batch.options.softcap = options.softcap;
            batch.options.slopes = options.slopes;
            if (options.softcap > 0)
              batch.options.query_scale =
                  random_tensor({batch.sequences.tokens()}, accumulate_dtype(dtype), 5);
            const KernelChoice kernels{{{"attention", variant}}};
            const AttentionOptions own = own_options(batch, cp);
            const Outcome want = on_one_device(batch),
                          got = run(core.make(cp), batch, own_inputs(batch, cp), &kernels, true, &own);
            const double tolerance = dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 1e-5 : 0x1p-6;
            CHECK(relative_error(got.o, own_rows(want.o, batch.sequences, cp)) < tolerance);
            CHECK(relative_error(got.dq, own_rows(want.dq, batch.sequences, cp)) < tolerance);
            CHECK(relative_error(got.dk, own_rows(want.dk, batch.sequences, cp)) < tolerance);
            CHECK(relative_error(got.dv, own_rows(want.dv, batch.sequences, cp)) < tolerance);
          }
}

TEST_CASE(
    "context parallel attention: one rank has the bits of the operation, several the same bits every time") {
  Communicator& cp = test_world().communicator();
  const auto self = self_communicator("cp", 0);
  const Batch batch({4, 2, 8}, uneven_microbatches[0], DType::f32);
  const auto check_same = [](const Outcome& a, const Outcome& b) {
    CHECK_BITS(a.o, b.o);
    CHECK_BITS(a.dq, b.dq);
    CHECK_BITS(a.dk, b.dk);
    CHECK_BITS(a.dv, b.dv);
  };
  for (const Core& core : cores) {
    CAPTURE(core.name);
    check_same(run(core.make(*self), batch, batch.inputs), on_one_device(batch));
    check_same(run(core.make(cp), batch, own_inputs(batch, cp)),
               run(core.make(cp), batch, own_inputs(batch, cp)));
  }
}

TEST_CASE("context parallel attention: variant plain, strided inputs, no gradient of the keys") {
  // Two groups, whose ranks are not in the order of the world.
  const int rank = test_world().rank();
  const auto group = test_world().split("cp", rank % 2, test_world().size() - rank);
  Communicator& cp = *group;
  const Batch batch({4, 2, 8}, {40, 9}, DType::f64);
  const KernelChoice plain{{{"attention", "plain"}}};
  const Outcome want = on_one_device(batch);
  auto own = own_inputs(batch, cp);
  for (Tensor& x : own) {
    const Tensor wide = Tensor::empty({x.dim(0), x.cols() + 3}, x.dtype(), Device::cpu);
    wide.narrow(-1, 2, x.cols()).copy_from(x);
    x = wide.narrow(-1, 2, x.cols());
  }
  for (const Core& core : cores) {
    CAPTURE(core.name);
    const Outcome got = run(core.make(cp), batch, own, &plain),
                  queries = run(core.make(cp), batch, own, nullptr, false);
    CHECK(relative_error(got.o, own_rows(want.o, batch.sequences, cp)) < 1e-12);
    CHECK(relative_error(got.dk, own_rows(want.dk, batch.sequences, cp)) < 1e-12);
    CHECK(relative_error(queries.dq, own_rows(want.dq, batch.sequences, cp)) < 1e-12);
    CHECK_FALSE(queries.dk.defined());
    // Without a tape nothing is recorded.
    Context silent;
    CHECK_BITS(core.make(cp)(silent, own[0], own[1], own[2], batch.options, batch.sequences).value(),
               queries.o);
  }
}

TEST_CASE("context parallel attention: bytes sent, and bytes kept for backward") {
  Communicator& cp = test_world().communicator();
  for (const Core& core : cores)
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const Lengths& lengths : uneven_microbatches) {
        CAPTURE(core.name);
        const Batch batch({4, 2, 8}, lengths, dtype);
        const auto inputs = own_inputs(batch, cp);
        const auto sent = [&] {
          const Tensor bytes = Tensor::zeros({1}, DType::i64, Device::cpu);
          for (const Operation o : {Operation::exchange, Operation::all_gather, Operation::reduce_scatter})
            *bytes.data<std::int64_t>() += cp.stats(o).bytes_sent;
          cp.all_reduce(bytes);
          return bytes.item<std::int64_t>();
        };
        const Var q = intermediate(inputs[0]), k = intermediate(inputs[1]), v = intermediate(inputs[2]);
        allocator(Device::cpu).release_cache();  // a free block may be half as large again as what it serves
        const std::int64_t start = sent(), memory = allocator(Device::cpu).stats().current_bytes;
        Tape tape;
        Context ctx{.tape = &tape};
        const Var o = core.make(cp)(ctx, q, k, v, batch.options, batch.sequences);
        const std::int64_t kept = allocator(Device::cpu).stats().current_bytes - memory;
        const std::int64_t forward = sent() - start;
        tape.backward(o, inputs[3]);
        const std::int64_t backward = sent() - start - forward;
        const std::int64_t elements = 2 * (cp.size() - 1) * batch.sequences.tokens() * 16;
        CHECK(forward == elements * size_of(dtype));
        CHECK(backward == elements * (size_of(dtype) + 4));
        // o and lse; each allocation is rounded up.
        CHECK(kept <= o.value().bytes() + inputs[0].dim(0) * 4 * 4 + 2 * 4096);
      }
}
