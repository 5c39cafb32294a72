#include "core/autograd.h"

#include <doctest/doctest.h>

#include "core/allocation_owner.h"
#include "core/kernel.h"
#include "core/log.h"
#include "core/parallel_for.h"
#include "core/profile.h"
#include "core/variants.h"
#include "tests/support/compare.h"

using namespace nemocube;

namespace {

Tensor values(const std::vector<double>& v) {
  const auto n = static_cast<std::int64_t>(v.size());
  return Tensor::from(v, {n});
}

// y = a * b, elementwise f64, counting how often it runs forward.
int forward_runs = 0;
Var multiply(Context& ctx, const Var& a, const Var& b) {
  ++forward_runs;
  const auto product = [](const Tensor& p, const Tensor& q) {
    const Tensor r = Tensor::empty(p.shape(), DType::f64, Device::cpu);
    for (std::int64_t i = 0; i < p.numel(); ++i)
      r.data<double>()[i] = p.data<double>()[i] * q.data<double>()[i];
    return r;
  };
  Var y = make_result(product(a.value(), b.value()), ctx.records({&a, &b}));
  if (y.needs_grad())
    ctx.tape->record("multiply", [product, a, b, out = y.node()] {
      if (!out->filled()) return;
      const Tensor g = out->take();
      if (a.needs_grad()) a.node()->add(product(g, b.value()));
      if (b.needs_grad()) b.node()->add(product(g, a.value()));
    });
  return y;
}

}  // namespace

TEST_CASE("tape: product rule, fan-out, and constants") {
  const Var x = Var::leaf(values({2, 3})), c(values({5, 7}));
  Tape tape;
  Context ctx;
  ctx.tape = &tape;
  const Var y = multiply(ctx, multiply(ctx, x, x), c);  // c x^2
  tape.backward(y, values({1, 10}));
  CHECK_BITS(x.grad(), values({2 * 5 * 2, 10 * 2 * 7 * 3}));
  CHECK_FALSE(c.needs_grad());
  CHECK_THROWS_AS(c.grad(), std::logic_error);
  CHECK(tape.size() == 0);
}

TEST_CASE("tape: nothing is recorded without a tape or without a wish") {
  Context silent;
  CHECK_FALSE(multiply(silent, Var::leaf(values({1})), values({1})).needs_grad());
  Tape tape;
  Context ctx;
  ctx.tape = &tape;
  CHECK_FALSE(multiply(ctx, values({1}), values({1})).needs_grad());
  CHECK(tape.size() == 0);
}

TEST_CASE("tape: two tapes alive at once accumulate into one leaf") {
  const Var w = Var::leaf(values({3}));
  Tape first, second;
  Context a, b;
  a.tape = &first;
  b.tape = &second;
  const Var ya = multiply(a, w, values({2})), yb = multiply(b, w, values({10}));
  second.backward(yb, values({1}));
  CHECK_BITS(w.grad(), values({10}));
  first.backward(ya, values({1}));
  CHECK_BITS(w.grad(), values({12}));
  w.node()->clear();
  CHECK_FALSE(w.node()->filled());
  Tape third;
  a.tape = &third;
  third.backward(multiply(a, w, values({2})), values({1}));
  CHECK_BITS(w.grad(), values({2}));  // the old value is overwritten, not added to
}

TEST_CASE("tape: what a closure throws names it, with the type it had") {
  Context ctx;
  const auto run = [&](const std::function<void()>& closure) {
    Tape inner, outer;
    ctx.tape = &inner;
    inner.record("linear", closure);
    outer.record("block 3", [&] { inner.backward(std::span<const Var>{}, {}); });
    outer.backward(std::span<const Var>{}, {});
  };
  const char* text = "backward of block 3: backward of linear: ";
  CHECK_THROWS_WITH_AS(run([] { fail("no room"); }), cat(text, "no room").c_str(), Error);
  CHECK_THROWS_WITH_AS(run([] { expect(false, "shape"); }), cat(text, "internal error: shape").c_str(),
                       std::logic_error);
}

TEST_CASE("gradient node: a stored gradient shared with others is not changed in place") {
  GradNode node({1}, DType::f64, Device::cpu, false), other({1}, DType::f64, Device::cpu, false);
  const Tensor g = values({1});
  node.add(g);
  other.add(g);
  node.add(values({5}));
  CHECK(other.grad().item<double>() == 1);
  CHECK(node.grad().item<double>() == 6);
}

TEST_CASE("gradient node: leaves sum bf16 contributions in f32") {
  GradNode leaf({1}, DType::bf16, Device::cpu, true);
  leaf.add(Tensor::scalar(1, DType::bf16, Device::cpu).reshape({1}));
  for (int i = 0; i < 64; ++i)
    leaf.add(Tensor::scalar(0x1p-9, DType::bf16, Device::cpu).reshape({1}));  // lost in bf16
  CHECK(leaf.grad().dtype() == DType::f32);
  CHECK(leaf.grad().item<float>() == 1.125f);
}

TEST_CASE("checkpoint: same gradients, forward runs again, frozen and constant inputs allowed") {
  for (const bool input_wants : {true, false}) {
    CAPTURE(input_wants);
    const Tensor start = values({2, -1});
    const Var x = input_wants ? Var::leaf(start) : Var(start);
    const Var w = Var::leaf(values({3, 4})), frozen(values({10, 100}));
    const Recomputed block = [&](Context& c, const Var& in) {
      return multiply(c, multiply(c, multiply(c, in, w), in), frozen);
    };
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    forward_runs = 0;
    const Var y = checkpoint(ctx, "block", block, x);
    CHECK(tape.size() == 1);
    CHECK(forward_runs == 3);
    CHECK_BITS(y.value(), values({2 * 2 * 3 * 10, 1 * 4 * 100}));
    tape.backward(y, values({1, 1}));
    CHECK(forward_runs == 6);
    CHECK_BITS(w.grad(), values({2 * 2 * 10, 1 * 100}));
    if (input_wants) CHECK_BITS(x.grad(), values({2 * 2 * 3 * 10, 2 * -1 * 4 * 100}));
  }
}

TEST_CASE("checkpoint: several inputs and results, of which some are read by nobody") {
  const Var w = Var::leaf(values({3, 4}));
  const RecomputedMany block = [&](Context& c, std::span<const Var> in) {
    return std::vector{multiply(c, in[0], w), multiply(c, in[0], in[1])};
  };
  // Of both results, of the second one, of none.
  for (const int read : {3, 2, 0}) {
    CAPTURE(read);
    w.node()->clear();
    const Var x = Var::leaf(values({2, -1})), y = Var::leaf(values({5, 6}));
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    forward_runs = 0;
    const std::array in{x, y};
    const std::vector<Var> out = checkpoint(ctx, "block", block, in);
    REQUIRE(out.size() == 2);
    CHECK_BITS(out[0].value(), values({6, -4}));
    CHECK_BITS(out[1].value(), values({10, -6}));
    std::vector<Var> ends;
    std::vector<Tensor> gradients;
    for (int i = 0; i < 2; ++i)
      if (read & (1 << i)) {
        ends.push_back(out[static_cast<std::size_t>(i)]);
        gradients.push_back(values({1, 10}));
      }
    tape.backward(ends, gradients);
    CHECK(tape.size() == 0);
    CHECK(forward_runs == (read ? 4 : 2));
    CHECK(w.node()->filled() == (read == 3));
    CHECK(x.node()->filled() == (read != 0));
    if (read == 3) CHECK_BITS(w.grad(), values({2, -10}));
    if (read == 3) CHECK_BITS(x.grad(), values({3 + 5, 40 + 60}));
    if (read == 2) CHECK_BITS(x.grad(), values({5, 60}));
    if (read != 0) CHECK_BITS(y.grad(), values({2, -10}));
  }
}

TEST_CASE("weight work: at once, or deferred, also from within a checkpoint, in the order in which it came") {
  for (const bool deferred : {false, true}) {
    CAPTURE(deferred);
    std::vector<int> done;
    Tape tape;
    if (deferred) tape.defer_weight_work();
    Context ctx{.tape = &tape};
    const auto step = [&done](int number) {
      return [&done, number](Context& c, const Var& in) {
        const Var y = make_result(in.value(), c.tape != nullptr);
        if (c.tape)
          c.tape->record("step", [&done, number, tape = c.tape, out = y.node(), in = in.node()] {
            const Tensor g = out->take();
            tape->weight_work([&done, number] { done.push_back(number); });
            if (in) in->add(g);
            done.push_back(-number);
          });
        return y;
      };
    };
    const Var x = Var::leaf(values({1}));
    const Var y = step(2)(ctx, checkpoint(ctx, "block", step(1), x));
    tape.backward(y, values({1}));
    CHECK(done == (deferred ? std::vector{-2, -1} : std::vector{2, -2, 1, -1}));
    tape.run_weight_work();
    CHECK(done == (deferred ? std::vector{-2, -1, 2, 1} : std::vector{2, -2, 1, -1}));
    CHECK(x.grad().item<double>() == 1);
  }
}

TEST_CASE("gradient node: a leaf takes the place that it is given") {
  const Tensor all = values({7, 7, 7, 7, 7});
  const Var w = Var::leaf(values({1, 2}));
  w.node()->set_place(all.narrow(0, 2, 2));
  w.node()->add(values({3, 4}));
  w.node()->add(values({30, 40}));
  CHECK_BITS(all, values({7, 7, 33, 44, 7}));
  w.node()->clear();
  w.node()->add(values({5, 6}));
  CHECK_BITS(all, values({7, 7, 5, 6, 7}));
  CHECK_THROWS_AS(w.node()->set_place(values({1})), std::logic_error);
}

TEST_CASE("parallel_for: covers every index once and passes exceptions on") {
  std::vector<int> seen(1000, 0);
  parallel_for(1000, 1, [&](std::int64_t b, std::int64_t e) {
    for (std::int64_t i = b; i < e; ++i) ++seen[static_cast<std::size_t>(i)];
  });
  for (const int n : seen) REQUIRE(n == 1);
  parallel_for(0, 1, [](std::int64_t, std::int64_t) { CHECK(false); });
  CHECK_THROWS_AS(parallel_for(1000, 1, [](std::int64_t, std::int64_t) { fail("inside"); }), Error);
}

TEST_CASE("kernel variants: default, choice, and unknown names") {
  enum class Variant { fast, plain };
  const Variants<Variant> variants("test_op", {{Variant::fast, "fast"}, {Variant::plain, "plain"}});
  Context ctx;
  CHECK(variants.chosen(ctx, Device::cpu) == Variant::fast);
  KernelChoice choice;
  choice.by_op["test_op"] = "plain";
  check_kernel_choice(choice);
  ctx.kernels = &choice;
  CHECK(variants.chosen(ctx, Device::cpu) == Variant::plain);
  choice.by_op["test_op"] = "faster";
  CHECK_THROWS_AS(check_kernel_choice(choice), Error);
  CHECK_THROWS_WITH_AS(variants.chosen(ctx, Device::cpu),
                       "kernels.test_op: no variant 'faster' (there are: fast, plain)", Error);
  choice.by_op.clear();
  choice.by_op["no_such_op"] = "plain";
  CHECK_THROWS_AS(check_kernel_choice(choice), Error);
}

namespace {

void on_the_cpu(const Tensor&) {}
// The backend for CUDA does not have it.
const Kernel<on_the_cpu> quick_kernel("test_variants/quick/run");

}  // namespace

TEST_CASE("kernel variants: a device has those whose kernels it has, and a recipe is told which") {
  enum class Variant { quick, plain };
  const Variants<Variant> variants("test_variants", {{Variant::quick, "quick"}, {Variant::plain, "plain"}});
  Context ctx;
  CHECK(variants.chosen(ctx, Device::cpu) == Variant::quick);
  CHECK(variants.chosen(ctx, Device::guard) == Variant::quick);
  CHECK(variants.chosen(ctx, Device::cuda) == Variant::plain);
  const KernelChoice choice{{{"test_variants", "quick"}}};
  CHECK_NOTHROW(check_kernel_choice(choice));
  const char* message = "kernels.test_variants: no variant 'quick' on cuda (there are: plain)";
  CHECK_THROWS_WITH_AS(check_kernel_choice(choice, Device::cuda), message, Error);
  ctx.kernels = &choice;
  CHECK_THROWS_WITH_AS(variants.chosen(ctx, Device::cuda), message, Error);
}

TEST_CASE("zones: count calls and time") {
  static Zone zone("test/zone");
  reset_zones();
  for (int i = 0; i < 3; ++i) const ZoneTimer timer(zone);
  CHECK(zone_totals().at("test/zone").calls == 3);
  reset_zones();
  CHECK(zone_totals().count("test/zone") == 0);
}

TEST_CASE("log levels: parsed by name") {
  CHECK(parse_log_level("warning") == LogLevel::warning);
  CHECK_THROWS_AS(parse_log_level("loud"), Error);
  set_log_level(LogLevel::error);
  CHECK_FALSE(log_enabled(LogLevel::warning));
  set_log_level(LogLevel::info);
  CHECK(log_enabled(LogLevel::info));
}

TEST_CASE("tape: a closure allocates for whom it was recorded; out of memory stays out of memory") {
  std::vector<std::string> owners;
  const auto note = [&owners] { owners.emplace_back(AllocationOwner::current()); };
  Tape tape;
  {
    const AllocationOwner first("block 1");
    tape.record("first", [&] {
      note();
      tape.weight_work(note);
    });
  }
  tape.record("second", note);
  tape.defer_weight_work();
  {
    const AllocationOwner step("step");
    tape.backward(std::span<const Var>(), std::span<const Tensor>());
    tape.run_weight_work();
  }
  CHECK(owners == std::vector<std::string>{"step", "block 1", "block 1"});
  tape.record("greedy", [] { Tensor::empty({std::int64_t{1} << 50}, DType::u8, Device::cpu); });
  try {
    tape.backward(std::span<const Var>(), std::span<const Tensor>());
    FAIL("no exception");
  } catch (const OutOfMemory& e) {
    CHECK(std::string(e.what()).starts_with("backward of greedy: out of memory: a tensor wants "));
  }
}

TEST_CASE("gradient node: memory lies on the device of the value, until a place is given") {
  GradNode node({2}, DType::bf16, Device::meta, true);
  CHECK(node.buffer().is_meta());
  CHECK(node.into().to.is_meta());
  const Tensor place = Tensor::zeros({2}, DType::f32, Device::cpu);
  node.set_place(place);
  CHECK(node.device() == Device::cpu);
  CHECK(node.into().to.same_storage(place));
}
