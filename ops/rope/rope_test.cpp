#include "ops/rope/rope.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>
#include <limits>
#include <memory>

#include "core/allocator.h"
#include "core/cuda/graph.h"
#include "ops/view/view.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

using Numbers = std::vector<std::int64_t>;

/// f_i = theta^(-2i / n), as of Llama.
RotaryFrequencies frequencies_of(std::int64_t pairs, double theta = 10000, double attention_factor = 1) {
  RotaryFrequencies f{.attention_factor = attention_factor};
  for (std::int64_t i = 0; i < pairs; ++i)
    f.inverse.push_back(std::pow(theta, -static_cast<double>(i) / static_cast<double>(pairs)));
  return f;
}

std::shared_ptr<GradNode> node_of(const Tensor& x) {
  return std::make_shared<GradNode>(x.shape(), x.dtype(), x.device(), false);
}

struct Heads {
  Tensor q, k;
};
struct Outcome {
  Tensor q, k, dq, dk;
};

Outcome run(const Heads& x, const Heads& d, std::int64_t head_dim, const RotaryFrequencies& f,
            const Sequences& sequences) {
  Tape tape;
  Context ctx;
  ctx.tape = &tape;
  const Var q(x.q, node_of(x.q)), k(x.k, node_of(x.k));
  const RotatedHeads y = rope(ctx, q, k, head_dim, f, sequences);
  const std::vector<Var> outputs{y.q, y.k};
  const std::vector<Tensor> gradients{d.q, d.k};
  tape.backward(outputs, gradients);
  return {y.q.value(), y.k.value(), q.node()->grad(), k.node()->grad()};
}

/// The formulas in f64, and for each element |a C| + |b Z|, of which its roundings are parts.
struct Reference {
  std::vector<double> y, size;
};
Reference reference(const Tensor& t, std::int64_t head_dim, const RotaryFrequencies& f,
                    const Numbers& positions, double sign) {
  const std::vector<double> x = t.to_vector();
  Reference r{x, std::vector<double>(x.size(), 0)};
  const std::size_t pairs = f.inverse.size();
  for (std::int64_t row = 0; row < t.rows(); ++row)
    for (std::int64_t head = 0; head < t.cols() / head_dim; ++head)
      for (std::size_t i = 0; i < pairs; ++i) {
        const auto at = static_cast<std::size_t>(row * t.cols() + head * head_dim) + i;
        const double angle =
            sign * static_cast<double>(positions[static_cast<std::size_t>(row)]) * f.inverse[i];
        const double c = f.attention_factor * std::cos(angle), z = f.attention_factor * std::sin(angle);
        const double a = x[at], b = x[at + pairs];
        r.y[at] = a * c - b * z;
        r.y[at + pairs] = b * c + a * z;
        r.size[at] = std::abs(a * c) + std::abs(b * z);
        r.size[at + pairs] = std::abs(b * c) + std::abs(a * z);
      }
  return r;
}

/// One rounding each of C and Z, of products and of the sum, and one of storage; in f64 a few more, because
/// cos and sin themselves are off. Channels that pass keep their bits.
std::string differs(const Tensor& got, const Reference& want) {
  const std::vector<double> y = got.to_vector();
  const double unit = got.dtype() == DType::f64 ? 0x1p-53 : 0x1p-24,
               storage = got.dtype() == DType::bf16 ? 0x1p-8 : 0,
               roundings = got.dtype() == DType::f64 ? 8 : 3;
  for (std::size_t i = 0; i < y.size(); ++i)
    if (!(std::abs(y[i] - want.y[i]) <=
          1.001 * roundings * unit * want.size[i] + (want.size[i] > 0 ? storage * std::abs(want.y[i]) : 0)))
      return cat("element ", i, ": got ", y[i], ", want ", want.y[i]);
  return "";
}

/// Values and gradients against the formulas.
void check_formulas(const Heads& x, const Heads& d, std::int64_t head_dim, const RotaryFrequencies& f,
                    const Sequences& sequences) {
  const Outcome got = run(x, d, head_dim, f, sequences);
  const auto check = [&](const Tensor& y, const Tensor& from, double sign) {
    CHECK(differs(y, reference(from, head_dim, f, sequences.positions(), sign)) == "");
    CHECK(y.dtype() == from.dtype());
    CHECK(y.shape() == from.shape());
  };
  check(got.q, x.q, 1);
  check(got.k, x.k, 1);
  check(got.dq, d.q, -1);
  check(got.dk, d.k, -1);
}

Heads random_heads(std::int64_t rows, std::int64_t q_width, std::int64_t k_width, DType dtype, Device device,
                   std::uint64_t seed) {
  return {random_tensor({rows, q_width}, dtype, seed).to(device),
          random_tensor({rows, k_width}, dtype, seed + 1).to(device)};
}

Heads windows(const Heads& x, std::int64_t start, std::int64_t q_width, std::int64_t k_width) {
  return {x.q.narrow(-1, start, q_width), x.k.narrow(-1, start, k_width)};
}

void check_same(const Outcome& a, const Outcome& b) {
  CHECK_BITS(a.q, b.q);
  CHECK_BITS(a.k, b.k);
  CHECK_BITS(a.dq, b.dq);
  CHECK_BITS(a.dk, b.dk);
}

}  // namespace

TEST_CASE("rope: against the formulas" * doctest::test_suite("cuda")) {
  struct Size {
    std::int64_t rows, heads, kv_heads, head_dim, pairs;
  };
  for_dtypes([](Device device, DType dtype) {
    for (const Size s : {Size{0, 2, 1, 8, 4}, Size{1, 1, 1, 2, 1}, Size{5, 5, 2, 6, 1}, Size{5, 3, 1, 6, 3},
                         Size{3, 2, 1, 7, 3}, Size{3, 4, 2, 8, 0}, Size{3, 1, 1, 16, 4}, Size{7, 5, 1, 32, 8},
                         Size{4, 8, 1, 64, 32}, Size{3, 9, 4, 80, 16}, Size{2, 3, 1, 34, 17}}) {
      CAPTURE(s.rows);
      CAPTURE(s.head_dim);
      CAPTURE(s.pairs);
      const std::int64_t q = s.heads * s.head_dim, k = s.kv_heads * s.head_dim;
      check_formulas(random_heads(s.rows, q, k, dtype, device, 1),
                     random_heads(s.rows, q, k, dtype, device, 3), s.head_dim,
                     frequencies_of(s.pairs, 100, 1.25), Sequences::uniform(1, s.rows));
    }
  });
}

TEST_CASE("rope: one angle turns a by cos and b by sin, halves being pairs; bf16 is rounded once" *
          doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    // Position 1: a quarter of a turn, and none. Channels 4 and 5 pass.
    const RotaryFrequencies f{{std::acos(0.0), 0}, 2};
    const Tensor q = Tensor::from<double>({9, 9, 9, 9, 9, 9, 1, 2, 3, 4, 5, 6}, {2, 6}).to(dtype).to(device);
    Context ctx;
    const RotatedHeads y = rope(ctx, q, q, 6, f, Sequences::uniform(1, 2));
    const Tensor want = Tensor::from<double>({18, 18, 18, 18, 9, 9, -6, 4, 2, 8, 5, 6}, {2, 6});
    CHECK_CLOSE(y.q.value(), want, (Tol{0, 1e-6}));
    CHECK_BITS(y.k.value(), y.q.value());
  });
  for (const Device device : test_devices()) {
    const Heads x = random_heads(9, 32, 16, DType::bf16, device, 1);
    const RotaryFrequencies f = frequencies_of(8);
    const Sequences sequences = Sequences::uniform(3, 3);
    const auto wide = run({x.q.to(DType::f32), x.k.to(DType::f32)}, {x.q.to(DType::f32), x.k.to(DType::f32)},
                          16, f, sequences);
    const Outcome y = run(x, x, 16, f, sequences);
    check_same(y, {wide.q.to(DType::bf16), wide.k.to(DType::bf16), wide.dq.to(DType::bf16),
                   wide.dk.to(DType::bf16)});
  }
}

TEST_CASE("rope: cos and sin of positions far out are right to the last bits of f32" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const RotaryFrequencies f = frequencies_of(4, 500000);
    const Sequences sequences({0, 4}, {131071, 1, 1048575, 16777217});
    // a = 1, b = 0 gives C and Z themselves.
    Tensor ones = Tensor::zeros({4, 8}, DType::f32, Device::cpu);
    ones.narrow(-1, 0, 4).fill(1);
    Context ctx;
    const auto y = rope(ctx, ones.to(device), ones.to(device), 8, f, sequences).q.value().to_vector();
    for (std::size_t row = 0; row < 4; ++row)
      for (std::size_t i = 0; i < 4; ++i) {
        const double angle = static_cast<double>(sequences.positions()[row]) * f.inverse[i];
        const double half_unit = 0x1.001p-24;
        CHECK(std::abs(y[row * 8 + i] - std::cos(angle)) <= half_unit * std::abs(std::cos(angle)));
        CHECK(std::abs(y[row * 8 + 4 + i] - std::sin(angle)) <= half_unit * std::abs(std::sin(angle)));
      }
  }
}

TEST_CASE("rope: scores depend on the difference of positions alone") {
  const std::int64_t head_dim = 16;
  const RotaryFrequencies f = frequencies_of(6, 1000, 1.5);
  const Tensor q = random_tensor({1, head_dim}, DType::f64, 1),
               k = random_tensor({1, head_dim}, DType::f64, 2);
  const auto score = [&](std::int64_t of_q, std::int64_t of_k) {
    Context ctx;
    const auto a = rope(ctx, q, k, head_dim, f, Sequences({0, 1}, {of_q})).q.value().to_vector(),
               b = rope(ctx, q, k, head_dim, f, Sequences({0, 1}, {of_k})).k.value().to_vector();
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
  };
  for (const std::int64_t difference : {0, 1, 7, 100}) {
    CAPTURE(difference);
    CHECK(score(difference, 0) == doctest::Approx(score(900 + difference, 900)).epsilon(1e-11));
  }
  CHECK(std::abs(score(1, 0) - score(2, 0)) > 1e-3);
  // Without a turn the scores of the rotated channels grow by A^2.
  const auto a = q.to_vector(), b = k.to_vector();
  double plain = 0;
  for (std::size_t i = 0; i < a.size(); ++i) plain += a[i] * b[i] * (i < 12 ? 2.25 : 1);
  CHECK(score(3, 3) == doctest::Approx(plain).epsilon(1e-12));
}

TEST_CASE("rope: packed sequences have the bits of each alone, and so have rows at given positions" *
          doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    const std::int64_t head_dim = 16;
    const RotaryFrequencies f = frequencies_of(8);
    const Heads x = random_heads(9, 48, 16, dtype, device, 1), d = random_heads(9, 48, 16, dtype, device, 3);
    const Numbers lengths{4, 0, 5};
    const Outcome packed = run(x, d, head_dim, f, Sequences::of_lengths(lengths));
    const auto rows = [](const Tensor& t, std::int64_t begin, std::int64_t count) {
      return t.narrow(0, begin, count).clone();
    };
    const auto check_rows = [&](std::int64_t begin, std::int64_t count, const Sequences& alone) {
      const auto cut = [&](const Tensor& t) { return rows(t, begin, count); };
      check_same(run({cut(x.q), cut(x.k)}, {cut(d.q), cut(d.k)}, head_dim, f, alone),
                 {cut(packed.q), cut(packed.k), cut(packed.dq), cut(packed.dk)});
    };
    check_rows(0, 4, Sequences::uniform(1, 4));
    check_rows(4, 5, Sequences::uniform(1, 5));
    // Decoding: the last row of each sequence. A rank's rows of one sequence.
    check_rows(3, 1, Sequences::of_lengths(Numbers{1}, Numbers{3}));
    check_rows(6, 3, Sequences({0, 1, 3}, {2, 3, 4}));
  });
}

TEST_CASE("rope: rows of wider tensors, gradients into windows" * doctest::test_suite("cuda")) {
  for_dtypes([](Device device, DType dtype) {
    // Heads of 8: packs of 16 bytes where the window starts at one. Heads of 6: none. Pairs of 2: none.
    struct Size {
      std::int64_t head_dim, pairs;
    };
    for (const Size s : {Size{8, 4}, Size{16, 8}, Size{16, 2}, Size{6, 2}})
      for (const std::int64_t start : {0, 1, 2, 8}) {
        CAPTURE(start);
        CAPTURE(s.head_dim);
        const RotaryFrequencies f = frequencies_of(s.pairs);
        const Sequences sequences = Sequences::uniform(1, 3);
        const Heads x = windows(random_heads(3, 48, 32, dtype, device, 1), start, 2 * s.head_dim, s.head_dim),
                    d = windows(random_heads(3, 40, 56, dtype, device, 3), start, 2 * s.head_dim, s.head_dim);
        check_formulas(x, d, s.head_dim, f, sequences);
        check_same(run(x, d, s.head_dim, f, sequences),
                   run({x.q.clone(), x.k.clone()}, {d.q.clone(), d.k.clone()}, s.head_dim, f, sequences));
      }
    // One projection of q, k and v: the gradients of q and k go to their windows of one gradient.
    const Tensor qkv = random_tensor({5, 32}, dtype, 5).to(device);
    const Heads d = random_heads(5, 16, 8, dtype, device, 6);
    const RotaryFrequencies f = frequencies_of(4);
    const Sequences sequences = Sequences::uniform(1, 5);
    const Numbers widths{16, 8, 8};
    const Heads parts{qkv.narrow(-1, 0, 16), qkv.narrow(-1, 16, 8)};
    const Outcome want = run(parts, d, 8, f, sequences);
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    const Var x(qkv, node_of(qkv));
    std::vector<Var> split = split_last(ctx, x, widths);
    const Tensor before = qkv.clone();
    const RotatedHeads y = rope(ctx, std::move(split[0]), std::move(split[1]), 8, f, sequences);
    CHECK_BITS(qkv, before);
    CHECK_BITS(y.q.value(), want.q);
    CHECK_BITS(y.k.value(), want.k);
    const std::vector<Var> outputs{y.q, y.k};
    const std::vector<Tensor> gradients{d.q, d.k};
    tape.backward(outputs, gradients);
    const Tensor dx = x.node()->grad();
    CHECK_BITS(dx.narrow(-1, 0, 16), want.dq);
    CHECK_BITS(dx.narrow(-1, 16, 8), want.dk);
    for (const double g : dx.narrow(-1, 24, 8).to_vector()) CHECK(g == 0);
  });
}

TEST_CASE("rope: takes the place of values that were given away and of gradients that nobody else holds" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices())
    for (const std::int64_t pairs : {8, 4}) {
      const RotaryFrequencies f = frequencies_of(pairs);
      const Sequences sequences = Sequences::uniform(2, 3);
      const Heads x = random_heads(6, 48, 16, DType::f32, device, 1),
                  d = random_heads(6, 48, 16, DType::f32, device, 3);
      const Outcome want = run(x, d, 16, f, sequences);  // and the table is made
      Heads own{x.q.clone(), x.k.clone()}, d_own{d.q.clone(), d.k.clone()};
      const void *q_place = own.q.address(), *k_place = own.k.address(), *dq_place = d_own.q.address(),
                 *dk_place = d_own.k.address();
      const auto nq = node_of(x.q), nk = node_of(x.k);
      Var q(std::move(own.q), nq), k(std::move(own.k), nk);
      own = {};
      Tape tape;
      Context ctx;
      ctx.tape = &tape;
      Allocator& memory = allocator(device);
      memory.reset_peak();
      const std::int64_t held = memory.stats().current_bytes;
      const RotatedHeads y = rope(ctx, std::move(q), std::move(k), 16, f, sequences);
      y.q.node()->add(std::move(d_own.q));
      y.k.node()->add(std::move(d_own.k));
      d_own = {};
      CHECK(y.q.value().address() == q_place);
      CHECK(y.k.value().address() == k_place);
      CHECK_BITS(y.q.value(), want.q);
      CHECK_BITS(y.k.value(), want.k);
      const std::vector<Var> outputs;
      const std::vector<Tensor> gradients;
      const std::int64_t peak = memory.stats().peak_bytes;
      tape.backward(outputs, gradients);
      CHECK(memory.stats().peak_bytes == peak);
      CHECK(peak == held);
      CHECK(nq->grad().address() == dq_place);
      CHECK(nk->grad().address() == dk_place);
      CHECK_BITS(nq->grad(), want.dq);
      CHECK_BITS(nk->grad(), want.dk);
    }
}

TEST_CASE("rope: leaves alone what others hold, and leaves; each of q and k by itself" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const RotaryFrequencies f = frequencies_of(4);
    const Sequences sequences = Sequences::uniform(1, 5);
    const Heads x = random_heads(5, 24, 12, DType::f32, device, 1),
                d = random_heads(5, 24, 12, DType::f32, device, 3);
    const Outcome want = run(x, d, 12, f, sequences);
    for (const bool own_q : {false, true}) {
      CAPTURE(own_q);
      const Tensor shared = own_q ? x.k.clone() : x.q.clone(), before = shared.clone();
      Var given = (own_q ? x.q : x.k).clone();
      const void* place = given.value().address();
      Context ctx;
      const RotatedHeads y = own_q ? rope(ctx, std::move(given), shared, 12, f, sequences)
                                   : rope(ctx, shared, std::move(given), 12, f, sequences);
      CHECK((own_q ? y.q : y.k).value().address() == place);
      CHECK((own_q ? y.k : y.q).value().address() != shared.address());
      CHECK_BITS(shared, before);
      CHECK_BITS(y.q.value(), want.q);
      CHECK_BITS(y.k.value(), want.k);
    }
    // Leaves, and gradients that somebody else holds.
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    Var q = Var::leaf(x.q.clone()), k = Var::leaf(x.k.clone());
    const void *q_place = q.value().address(), *k_place = k.value().address();
    const auto nq = q.node(), nk = k.node();
    const RotatedHeads y = rope(ctx, std::move(q), std::move(k), 12, f, sequences);
    CHECK(y.q.value().address() != q_place);
    CHECK(y.k.value().address() != k_place);
    const Heads kept{d.q.clone(), d.k.clone()};
    const std::vector<Var> outputs{y.q, y.k};
    const std::vector<Tensor> gradients{d.q, d.k};
    tape.backward(outputs, gradients);
    CHECK_BITS(d.q, kept.q);
    CHECK_BITS(d.k, kept.k);
    CHECK_BITS(nq->grad(), want.dq);
    CHECK_BITS(nk->grad(), want.dk);
    // A window, whose rows are apart, has new memory.
    Tensor wide = random_tensor({5, 30}, DType::f32, 5).to(device);
    Var window = wide.narrow(-1, 0, 24);
    wide = {};
    CHECK(rope(ctx, std::move(window), x.k, 12, f, sequences).q.value().contiguous());
  }
}

TEST_CASE("rope: against finite differences") {
  const RotaryFrequencies f = frequencies_of(2, 10, 1.5);
  const Sequences sequences = Sequences::of_lengths(Numbers{2, 3});
  const std::vector<Tensor> inputs{random_tensor({5, 12}, DType::f64, 1),
                                   random_tensor({5, 6}, DType::f64, 2)};
  const auto rotated = [&](Context& ctx, const Var& q, const Var& k) {
    const RotatedHeads y = rope(ctx, q, k, 6, f, sequences);
    return std::vector<Var>{y.q, y.k};
  };
  const auto both = [&](Context& ctx, const std::vector<Var>& x) { return rotated(ctx, x[0], x[1]); };
  CHECK_GRADIENTS(both, inputs);
  CHECK_GRADIENTS(both, inputs, {.wants = {true, false}});
  CHECK_GRADIENTS(both, inputs, {.wants = {false, true}});
  // The same value as q and as k, whose gradients share one place.
  CHECK_GRADIENTS([&](Context& ctx, const std::vector<Var>& x) { return rotated(ctx, x[0], x[0]); },
                  {inputs[0]});
  // Also where the gradient has its place from the step before.
  const Var leaf = Var::leaf(inputs[0]);
  Tensor once;
  for (int step = 0; step < 2; ++step) {
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    const std::vector<Tensor> gradients{inputs[0], random_tensor({5, 12}, DType::f64, 3)};
    tape.backward(rotated(ctx, leaf, leaf), gradients);
    if (step == 0)
      once = leaf.grad().clone();
    else
      CHECK_BITS(leaf.grad(), once);
    leaf.node()->clear();
  }
  // A result that has further uses.
  CHECK_GRADIENTS(
      [&](Context& ctx, const std::vector<Var>& x) {
        const std::vector<Var> y = rotated(ctx, x[0], x[1]), again = rotated(ctx, y[0], y[1]);
        return std::vector<Var>{y[0], again[0], again[1]};
      },
      inputs);
}

TEST_CASE("rope: records nothing without need; one of q and k wants a gradient; leaves in bf16" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const RotaryFrequencies f = frequencies_of(4);
    const Sequences sequences = Sequences::uniform(1, 5);
    const Heads x = random_heads(5, 16, 8, DType::bf16, device, 1),
                d = random_heads(5, 16, 8, DType::bf16, device, 3);
    const Outcome want = run(x, d, 8, f, sequences);
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    const RotatedHeads constants = rope(ctx, x.q, x.k, 8, f, sequences);
    CHECK_FALSE(constants.q.needs_grad());
    CHECK_FALSE(constants.k.needs_grad());
    CHECK(tape.size() == 0);
    const Var q = Var::leaf(x.q), k = Var::leaf(x.k);
    const RotatedHeads only_q = rope(ctx, q, x.k, 8, f, sequences);
    CHECK_FALSE(only_q.k.needs_grad());
    CHECK_BITS(only_q.k.value(), want.k);
    tape.backward(only_q.q, d.q);
    CHECK_BITS(q.grad(), want.dq.to(DType::f32));
    const RotatedHeads only_k = rope(ctx, x.q, k, 8, f, sequences);
    CHECK_FALSE(only_k.q.needs_grad());
    tape.backward(only_k.k, d.k);
    CHECK_BITS(k.grad(), want.dk.to(DType::f32));
    // Both want one, and one result is not used.
    const Var other_q = Var::leaf(x.q), other_k = Var::leaf(x.k);
    tape.backward(rope(ctx, other_q, other_k, 8, f, sequences).k, d.k);
    CHECK_FALSE(other_q.node()->filled());
    CHECK_BITS(other_k.grad(), want.dk.to(DType::f32));
  }
}

TEST_CASE("rope: the table is made once for its frequencies, and filled again for other sequences" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices()) {
    const Heads x = random_heads(8, 32, 16, DType::f32, device, 1);
    const RotaryFrequencies f = frequencies_of(8), slow = frequencies_of(8, 1e6),
                            scaled = frequencies_of(8, 10000, 2);
    CHECK(f == frequencies_of(8));
    CHECK_FALSE(f == slow);
    const Sequences first = Sequences::of_lengths(Numbers{2, 3}).with_capacity(8, 3),
                    second = Sequences::of_lengths(Numbers{1, 6}, Numbers{9, 2}).with_capacity(8, 3);
    Sequences fixed = first.clone();
    const auto check_as = [&](const Sequences& same) {
      for (const RotaryFrequencies& each : {f, slow, scaled})
        check_same(run(x, x, 16, each, fixed), run(x, x, 16, each, same.clone()));
    };
    check_as(first);
    if (device.is_host()) {
      const Heads wide{x.q.to(DType::f64), x.k.to(DType::f64)};
      check_same(run(wide, wide, 16, f, fixed), run(wide, wide, 16, f, first.clone()));
    }
    Allocator& memory = allocator(device);
    const std::int64_t held = memory.stats().current_bytes;
    check_as(first);
    CHECK(memory.stats().current_bytes == held);
    fixed.become(second);
    check_as(second);
    CHECK(differs(run(x, x, 16, f, fixed).q, reference(x.q, 16, f, second.positions(), 1)) == "");
  }
}

TEST_CASE("rope: a recorded rotation turns by the positions that sequences have by then" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const Heads x = random_heads(8, 32, 16, DType::bf16, Device::cuda, 1);
  const RotaryFrequencies f = frequencies_of(8);
  const Sequences first = Sequences::uniform(2, 4).clone(), second = Sequences::of_lengths(Numbers{7, 1});
  Sequences fixed = first.clone();
  const auto rotated = [&](const Sequences& sequences) {
    Context ctx;
    return rope(ctx, x.q, x.k, 16, f, sequences);
  };
  const RotatedHeads want_first = rotated(first), want_second = rotated(second);
  rotated(fixed);  // makes the table
  const Heads out{Tensor::zeros(x.q.shape(), DType::bf16, Device::cuda),
                  Tensor::zeros(x.k.shape(), DType::bf16, Device::cuda)};
  const auto graph = cuda::capture_graph([&] {
    const RotatedHeads y = rotated(fixed);
    out.q.copy_from(y.q.value());
    out.k.copy_from(y.k.value());
  });
  graph->launch();
  CHECK_BITS(out.q, want_first.q.value());
  fixed.become(second);
  graph->launch();
  CHECK_BITS(out.q, want_second.q.value());
  CHECK_BITS(out.k, want_second.k.value());
}

TEST_CASE("rope: bits do not depend on the number of threads") {
  const Heads x = random_heads(301, 512, 128, DType::bf16, Device::cpu, 1);
  const RotaryFrequencies f = frequencies_of(24);
  const int before = omp_get_max_threads();
  const auto with_threads = [&](int threads) {
    omp_set_num_threads(threads);
    return run(x, x, 64, f, Sequences::uniform(7, 43));
  };
  const Outcome one = with_threads(1), three = with_threads(3);
  omp_set_num_threads(before);
  check_same(one, three);
}

TEST_CASE("rope: errors" * doctest::test_suite("cuda")) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const Device device : test_devices()) {
    Context ctx;
    const auto zeros = [&](const Shape& shape, DType dtype = DType::f32) {
      return Tensor::zeros(shape, dtype, device);
    };
    const Tensor q = zeros({4, 16}), k = zeros({4, 8});
    const RotaryFrequencies f = frequencies_of(4);
    const Sequences four = Sequences::uniform(1, 4);
    const auto check = [&](const char* message, const Tensor& x, const Tensor& y, std::int64_t head_dim,
                           const RotaryFrequencies& frequencies, const Sequences& sequences) {
      CHECK_THROWS_WITH_AS(rope(ctx, x, y, head_dim, frequencies, sequences), message, Error);
    };
    check("rope: q: got no tensor", {}, k, 8, f, four);
    check("rope: k: got no tensor", q, {}, 8, f, four);
    check("rope: q: want [tokens, heads * head_dim], got shape [4]", zeros({4}), k, 8, f, four);
    check("rope: q: want f32, f64 or bf16, got i32", zeros({4, 16}, DType::i32), k, 8, f, four);
    check("rope: k: want f32, got bf16", q, zeros({4, 8}, DType::bf16), 8, f, four);
    check("rope: head_dim: want a positive number, got 0", q, k, 0, f, four);
    check("rope: head_dim: want a positive number, got -8", q, k, -8, f, four);
    check("rope: q: want a width that is a multiple of head_dim, 8, got 12", zeros({4, 12}), k, 8, f, four);
    check("rope: k: want a width that is a multiple of head_dim, 16, got 8", q, k, 16, f, four);
    check("rope: k: want 4 rows as q, got 5", q, zeros({5, 8}), 8, f, four);
    check("rope: frequencies: want at most 4, one for each two channels of a head, got 5", q, k, 8,
          frequencies_of(5), four);
    check("rope: frequencies: want finite numbers, got inf", q, k, 8, {{1, inf}}, four);
    check("rope: frequencies: want finite numbers, got nan", q, k, 8, {{nan}}, four);
    check("rope: attention_factor: want a finite number, got inf", q, k, 8, {{1}, inf}, four);
    check("rope: sequences cover 5 tokens, the input has 4", q, k, 8, f, Sequences::uniform(1, 5));
    CHECK_THROWS_WITH_AS(rope(ctx, q, k, 8, f, Sequences({0, 4}, {7, 8})),
                         doctest::Contains("rope: 2 positions of 4 rows"), std::logic_error);
  }
  if (!has_cuda()) return;
  Context ctx;
  const Tensor wide = Tensor::zeros({1, 2}, DType::f64, Device::cuda);
  CHECK_THROWS_WITH_AS(rope(ctx, wide, wide, 2, frequencies_of(1), Sequences::uniform(1, 1)),
                       "rope on cuda: want f32, got f64", Error);
}
