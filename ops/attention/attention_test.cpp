#include "ops/attention/attention.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>
#include <limits>

#include "core/allocator.h"
#include "core/kernel.h"
#include "core/variants.h"
#include "ops/attention/attention_tiles_cpu.h"
#include "ops/attention/partial_attention.h"
#include "ops/view/view.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/far_rows.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

using Lengths = std::vector<std::int64_t>;

struct Case {
  AttentionOptions options;
  Sequences q_seqs, kv_seqs;
  Tensor q, k, v, d_o;
};

Case make_case(const AttentionOptions& options, const Lengths& q_lengths, const Lengths& kv_lengths,
               DType dtype = DType::f64, Device device = Device::cpu) {
  Case c{options, Sequences::of_lengths(q_lengths), Sequences::of_lengths(kv_lengths), {}, {}, {}, {}};
  const Shape q{c.q_seqs.tokens(), options.heads * options.head_dim};
  const Shape k{c.kv_seqs.tokens(), options.kv_heads * options.head_dim};
  c.q = random_tensor(q, dtype, 1).to(device);
  c.k = random_tensor(k, dtype, 2).to(device);
  c.v = random_tensor(k, dtype, 3).to(device);
  c.d_o = random_tensor(q, dtype, 4).to(device);
  return c;
}

struct Outcome {
  Tensor o, dq, dk, dv;
};

std::vector<Device> devices() { return test_devices("attention"); }

/// The variants that a device has.
std::vector<const char*> variants_on(Device device) {
  std::vector<const char*> variants{"tiled", "plain"};
  std::erase_if(variants, [&](const char* variant) { return !has_variant(device, "attention", variant); });
  return variants;
}

const KernelChoice& choice(const char* name) {
  static std::map<std::string, KernelChoice> choices;
  return choices[name] = KernelChoice{{{"attention", name}}};
}

/// The gradient of a value, in its own dtype, with the value as an intermediate (a leaf would be f32).
Var intermediate(const Tensor& t) {
  return Var(t, std::make_shared<GradNode>(t.shape(), t.dtype(), t.device(), false));
}

Outcome run(const Case& c, const char* variant) {
  Tape tape;
  Context ctx;
  ctx.tape = &tape;
  ctx.kernels = &choice(variant);
  const Var q = intermediate(c.q), k = intermediate(c.k), v = intermediate(c.v);
  const Var o = attention(ctx, q, k, v, c.options, c.q_seqs, c.kv_seqs);
  CHECK(tape.size() == 1);
  tape.backward(o, c.d_o);
  return {o.value(), q.node()->grad(), k.node()->grad(), v.node()->grad()};
}

/// The textbook: the whole matrix of weights, f64. `round` is applied to what FlashAttention-2 rounds to
/// bf16: weights and their gradients where they enter a product, o before delta is formed from it, and the
/// results.
template <class Round>
Outcome reference(const Case& c, const Round& round) {
  const AttentionOptions& a = c.options;
  const std::int64_t hd = a.head_dim, q_cols = a.heads * hd, k_cols = a.kv_heads * hd;
  const double scale = a.scale == 0 ? 1 / std::sqrt(static_cast<double>(hd)) : a.scale;
  const auto q = c.q.to_vector(), k = c.k.to_vector(), v = c.v.to_vector(), g = c.d_o.to_vector();
  std::vector<double> o(q.size()), dq(q.size()), dk(k.size()), dv(k.size());
  const auto at = [](auto& x, std::int64_t i) -> auto& { return x[static_cast<std::size_t>(i)]; };
  for (std::int64_t s = 0; s < c.q_seqs.count(); ++s)
    for (std::int64_t h = 0; h < a.heads; ++h) {
      const std::int64_t nq = c.q_seqs.length(s), nk = c.kv_seqs.length(s), kh = h / (a.heads / a.kv_heads);
      for (std::int64_t i = 0; i < nq; ++i) {
        const std::int64_t qi = (c.q_seqs.begin(s) + i) * q_cols + h * hd;
        const auto key = [&](std::int64_t j) { return (c.kv_seqs.begin(s) + j) * k_cols + kh * hd; };
        std::vector<double> p(static_cast<std::size_t>(nk)), dp(p.size());
        double most = -std::numeric_limits<double>::infinity(), sum = 0, delta = 0;
        const auto seen = [&](std::int64_t j) { return !a.causal || j <= i + nk - nq; };
        for (std::int64_t j = 0; j < nk; ++j) {
          for (std::int64_t d = 0; d < hd; ++d) at(p, j) += scale * at(q, qi + d) * at(k, key(j) + d);
          if (seen(j)) most = std::max(most, at(p, j));
        }
        for (std::int64_t j = 0; j < nk; ++j) sum += at(p, j) = seen(j) ? std::exp(at(p, j) - most) : 0;
        for (std::int64_t j = 0; j < nk; ++j) {
          const double unscaled = round(at(p, j));
          at(p, j) = sum > 0 ? at(p, j) / sum : 0;
          const double weight = round(at(p, j));
          for (std::int64_t d = 0; d < hd; ++d) {
            if (sum > 0) at(o, qi + d) += unscaled / sum * at(v, key(j) + d);
            at(dv, key(j) + d) += weight * at(g, qi + d);
            at(dp, j) += at(g, qi + d) * at(v, key(j) + d);
          }
        }
        for (std::int64_t d = 0; d < hd; ++d) delta += round(at(o, qi + d)) * at(g, qi + d);
        for (std::int64_t j = 0; j < nk; ++j) {
          const double ds = round(at(p, j) * (at(dp, j) - delta));
          for (std::int64_t d = 0; d < hd; ++d) {
            at(dq, qi + d) += scale * ds * at(k, key(j) + d);
            at(dk, key(j) + d) += scale * ds * at(q, qi + d);
          }
        }
      }
    }
  for (std::vector<double>* result : {&o, &dq, &dk, &dv})
    for (double& x : *result) x = round(x);
  const auto as = [](const std::vector<double>& x, const Tensor& like) {
    return Tensor::from(x, like.shape());
  };
  return {as(o, c.q), as(dq, c.q), as(dk, c.k), as(dv, c.v)};
}

Outcome reference(const Case& c) {
  return reference(c, [](double x) { return x; });
}

/// o is an average of values near 1 with weights off by the error of a score: a sum over head_dim of terms
/// that together reach about 4. Gradients add up to `rows` such terms for each head of a group.
void check_case(const Case& c, const char* variant) {
  CAPTURE(variant);
  const Outcome got = run(c, variant), want = reference(c);
  const std::int64_t keys = c.kv_seqs.longest(), queries = c.q_seqs.longest(),
                     group = c.options.heads / c.options.kv_heads;
  CHECK(got.o.dtype() == c.q.dtype());
  CHECK(got.o.contiguous());
  CHECK_CLOSE(got.o, want.o, sum_tol(c.q.dtype(), c.options.head_dim + keys, 4));
  if (c.q.dtype() == DType::bf16) {
    // delta is formed from the rounded o: 2^-8 |do . o| on top of the rounding of the result.
    CHECK(relative_error(got.dq, want.dq) < 0x1p-7);
    CHECK(relative_error(got.dk, want.dk) < 0x1p-7);
    CHECK(relative_error(got.dv, want.dv) < 0x1p-7);
    return;
  }
  CHECK_CLOSE(got.dq, want.dq, sum_tol(c.q.dtype(), c.options.head_dim + keys, 8));
  CHECK_CLOSE(got.dk, want.dk, sum_tol(c.q.dtype(), c.options.head_dim + queries * group, 16));
  CHECK_CLOSE(got.dv, want.dv, sum_tol(c.q.dtype(), c.options.head_dim + queries * group, 16));
}

struct Threads {
  explicit Threads(int n) : before(omp_get_max_threads()) { omp_set_num_threads(n); }
  ~Threads() { omp_set_num_threads(before); }
  int before;
};

void check_same_bits(const Outcome& a, const Outcome& b) {
  CHECK_BITS(a.o, b.o);
  CHECK_BITS(a.dq, b.dq);
  CHECK_BITS(a.dk, b.dk);
  CHECK_BITS(a.dv, b.dv);
}

}  // namespace

TEST_CASE("attention: the same bits on the guard device") {
  for (const char* variant : {"tiled", "plain"})
    for_dtypes({Device::guard}, [&](Device device, DType dtype) {
      CAPTURE(variant);
      for (const bool causal : {true, false})
        for (const bool decoding : {true, false}) {
          AttentionOptions options{4, 2, 8};
          options.causal = causal;
          const Lengths keys{70, 0, 3, 130};
          const Case c = make_case(options, decoding ? Lengths{1, 0, 1, 2} : keys, keys, dtype);
          const auto on = [&](Device at) {
            const auto leaf = [&](const Tensor& t) { return Var::leaf(t.to(at)); };
            const Var q = leaf(c.q), k = leaf(c.k), v = leaf(c.v);
            Tape tape;
            Context ctx{.tape = &tape, .kernels = &choice(variant)};
            const Var o = attention(ctx, q, k, v, c.options, c.q_seqs, c.kv_seqs);
            tape.backward(o, c.d_o.to(at));
            return std::vector{o.value(), q.grad(), k.grad(), v.grad()};
          };
          const auto got = on(device), want = on(Device::cpu);
          for (std::size_t i = 0; i < want.size(); ++i) CHECK_BITS(got[i], want[i]);
        }
    });
}

TEST_CASE("attention: against the whole matrix, lengths around every tile" * doctest::test_suite("cuda")) {
  // On the CPU a block holds 128 / group queries, a tile 96 keys; on CUDA 64 / group and 64.
  for_dtypes(devices(), [&](Device device, DType dtype) {
    for (const char* variant : variants_on(device)) {
      const auto check = [&](const AttentionOptions& o, const Lengths& q, const Lengths& kv) {
        CAPTURE(o.heads);
        CAPTURE(o.head_dim);
        CAPTURE(q.back());
        check_case(make_case(o, q, kv, dtype, device), variant);
      };
      if (device.is_cuda()) {
        for (const std::int64_t n : {1, 31, 32, 33, 65}) check({4, 2, 16}, {n}, {n});
        check({1, 1, 1}, {63, 64, 0, 65}, {63, 64, 0, 65});
        check({2, 1, 130}, {33}, {40});
        check({1, 1, 300}, {9}, {11});
      } else {
        for (const std::int64_t n : {1, 2, 31, 32, 33, 95, 96, 97, 131}) check({8, 2, 16}, {n}, {n});
        check({1, 1, 1}, {127, 128, 129, 0, 1}, {127, 128, 129, 0, 1});
      }
      check({3, 1, 5}, {0, 41, 43}, {0, 97, 43});
      check({6, 2, 7}, {7, 50}, {193, 50});
      check({4, 4, 33}, {40, 3}, {40, 3});
      check({130, 1, 2}, {3, 1}, {3, 5});
      check({4, 2, 8, 0, false}, {5, 100, 1}, {97, 3, 200});
      check({4, 2, 8, 0.7}, {20}, {20});
    }
  });
}

// The heads of Gemma 4's full layers: 512 channels, scores that are not scaled. On CUDA no tensor cores have
// them; sums of 128 channels at a time take four passes.
TEST_CASE("attention: heads of 512 channels, scores with a scale of 1" * doctest::test_suite("cuda")) {
  for_dtypes(devices(), [&](Device device, DType dtype) {
    for (const char* variant : variants_on(device)) {
      const auto check = [&](std::int64_t heads, std::int64_t kv_heads, const Lengths& q, const Lengths& kv) {
        CAPTURE(heads);
        Case c = make_case({heads, kv_heads, 512, 1.0}, q, kv, dtype, device);
        c.q = random_tensor(c.q.shape(), dtype, 1, 1 / std::sqrt(512.0)).to(device);
        check_case(c, variant);
      };
      if (device.is_cuda()) {
        check(2, 1, {5, 0, 1}, {70, 3, 9});
        continue;
      }
      check(4, 2, {33, 0, 3}, {33, 0, 3});
      check(2, 1, {1, 3}, {100, 9});  // decoding
    }
  });
}

TEST_CASE("attention: against finite differences") {
  for (const char* variant : {"tiled", "plain"}) {
    CAPTURE(variant);
    const auto check = [&](const AttentionOptions& o, const Lengths& q, const Lengths& kv,
                           const std::vector<bool>& wants) {
      const Case c = make_case(o, q, kv);
      GradCheckOptions options;
      options.wants = wants;
      CHECK_GRADIENTS(
          [&](Context& ctx, const std::vector<Var>& x) {
            Context chosen = ctx;
            chosen.kernels = &choice(variant);
            return std::vector<Var>{attention(chosen, x[0], x[1], x[2], c.options, c.q_seqs, c.kv_seqs)};
          },
          {c.q, c.k, c.v}, options);
    };
    check({4, 2, 3}, {5, 1, 3}, {5, 1, 3}, {});
    check({2, 1, 4}, {3, 4}, {6, 2}, {});
    check({2, 2, 3, 0.9, false}, {4, 2}, {3, 5}, {});
    check({2, 1, 512, 0.05}, {1}, {2}, {});
    check({2, 1, 2}, {4}, {4}, {true, false, false});
    check({2, 1, 2}, {4}, {4}, {false, true, false});
    check({2, 1, 2}, {4}, {4}, {false, false, true});
  }
}

TEST_CASE("attention: one value as query, key and value") {
  const Sequences s = Sequences::of_lengths(Lengths{3, 2});
  CHECK_GRADIENTS(
      [&](Context& ctx, const std::vector<Var>& x) {
        return std::vector<Var>{attention(ctx, x[0], x[0], x[0], {2, 2, 3}, s, s)};
      },
      {random_tensor({5, 6}, DType::f64, 1)});
}

TEST_CASE("attention: packed sequences give the bits of separate ones" * doctest::test_suite("cuda")) {
  for_dtypes(devices(), [&](Device device, DType dtype) {
    const Lengths lengths = device.is_cuda() ? Lengths{33, 1, 70, 0, 64} : Lengths{33, 1, 130, 0, 96};
    const Case whole = make_case({4, 2, 16}, lengths, lengths, dtype, device);
    const Outcome packed = run(whole, "tiled");
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const std::int64_t first = whole.q_seqs.begin(static_cast<std::int64_t>(i)), n = lengths[i];
      const auto cut = [&](const Tensor& t) { return t.narrow(0, first, n); };
      const Sequences one = Sequences::uniform(1, n);
      const Case c{whole.options, one, one, cut(whole.q), cut(whole.k), cut(whole.v), cut(whole.d_o)};
      check_same_bits({cut(packed.o), cut(packed.dq), cut(packed.dk), cut(packed.dv)}, run(c, "tiled"));
    }
  });
}

TEST_CASE("attention: token by token with a cache is the prefill, within rounding" *
          doctest::test_suite("cuda")) {
  for (const Device device : devices()) {
    const std::int64_t n = 101;
    const Case c = make_case({8, 2, 16}, {n}, {n}, DType::f32, device);
    Context ctx;
    const Sequences all = Sequences::uniform(1, n), one = Sequences::uniform(1, 1);
    const Tensor prefill = attention(ctx, c.q, c.k, c.v, c.options, all, all).value();
    for (std::int64_t t = 0; t < n; t += device.is_cuda() ? 20 : 1) {
      const Sequences seen = Sequences::uniform(1, t + 1);
      const Tensor o = attention(ctx, c.q.narrow(0, t, 1), c.k.narrow(0, 0, t + 1), c.v.narrow(0, 0, t + 1),
                                 c.options, one, seen)
                           .value();
      CHECK_CLOSE(o, prefill.narrow(0, t, 1), sum_tol(DType::f32, 16 + n, 4));
    }
  }
}

TEST_CASE("attention: bits do not depend on the number of threads") {
  // One span on three threads takes the two-pass backward, on one thread the single pass.
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [options, lengths] : std::vector<std::pair<AttentionOptions, Lengths>>{
             {{4, 1, 16}, {200}}, {{4, 2, 16}, {40, 97, 3}}, {{2, 2, 8, 0, false}, {130, 31}}})
      for (const char* variant : {"tiled", "plain"}) {
        const Case c = make_case(options, lengths, lengths, dtype);
        Outcome one, three;
        {
          const Threads threads(1);
          one = run(c, variant);
        }
        {
          const Threads threads(3);
          three = run(c, variant);
        }
        check_same_bits(one, three);
      }
}

TEST_CASE("attention: parts of one projection, without copies" * doctest::test_suite("cuda")) {
  const AttentionOptions options{4, 2, 8};
  const Sequences s = Sequences::of_lengths(Lengths{20, 13});
  const Lengths widths{32, 16, 16};
  for_dtypes(devices(), [&](Device device, DType dtype) {
    for (const char* variant : variants_on(device)) {
      const Tensor qkv = random_tensor({33, 64}, dtype, 5).to(device),
                   d_o = random_tensor({33, 32}, dtype, 6).to(device);
      const auto gradient = [&](bool copies) {
        Tape tape;
        Context ctx;
        ctx.tape = &tape;
        ctx.kernels = &choice(variant);
        const Var x = Var::leaf(qkv);
        std::vector<Var> parts = split_last(ctx, x, widths);
        if (copies)
          for (Var& part : parts) part = Var(part.value().clone(), part.node());
        const Var o = attention(ctx, parts[0], parts[1], parts[2], options, s, s);
        // The gradient arrives as a window too.
        const Tensor wide = Tensor::empty({33, 40}, dtype, device);
        wide.narrow(-1, 4, 32).copy_from(d_o);
        tape.backward(o, copies ? d_o : wide.narrow(-1, 4, 32));
        return std::pair(o.value(), x.grad());
      };
      const auto [o, dx] = gradient(false);
      const auto [want_o, want_dx] = gradient(true);
      CHECK_BITS(o, want_o);
      CHECK_BITS(dx, want_dx);
    }
  });
}

TEST_CASE("attention: a query that sees no key gives 0 and no gradient" * doctest::test_suite("cuda")) {
  for_dtypes(devices(), [&](Device device, DType dtype) {
    for (const char* variant : variants_on(device)) {
      const Case c = make_case({2, 1, 4}, {40, 3, 2}, {35, 0, 2}, dtype, device);
      const Outcome r = run(c, variant);
      CHECK_CLOSE(r.o, reference(c).o, sum_tol(dtype, 40, 4));
      for (const Tensor& t : {r.o, r.dq})
        for (const auto& [first, count] : {std::pair{0, 5}, std::pair{40, 3}})
          for (const double x : t.narrow(0, first, count).to_vector()) CHECK(x == 0);
      for (const Tensor& t : {r.dq, r.dk, r.dv})
        for (const double x : t.to_vector()) CHECK(std::isfinite(x));
    }
  });
}

TEST_CASE("attention: large scores do not overflow, NaN is not hidden" * doctest::test_suite("cuda")) {
  for (const Device device : devices())
    for (const char* variant : variants_on(device)) {
      Case c = make_case({4, 2, 16, 30.0}, {150}, {150}, DType::f32, device);
      c.v.fill(1);
      const Tensor ones = Tensor::empty(c.q.shape(), DType::f32, Device::cpu);
      ones.fill(1);
      CHECK_CLOSE(run(c, variant).o, ones, sum_tol(DType::f32, 150, 1));
      c.q.narrow(0, 0, 1).narrow(-1, 0, 1).fill(std::numeric_limits<float>::quiet_NaN());
      const auto o = run(c, variant).o.to_vector();
      CHECK(std::isnan(o[0]));
      CHECK(o[64] == doctest::Approx(1));
    }
}

TEST_CASE("attention: leaves in bf16, and a second microbatch" * doctest::test_suite("cuda")) {
  for (const Device device : devices()) {
    const Case c = make_case({2, 1, 8}, {9, 4}, {9, 4}, DType::bf16, device);
    const Var q = Var::leaf(c.q), k = Var::leaf(c.k), v = Var::leaf(c.v);
    const Outcome once = run(c, "tiled");
    for (int pass = 1; pass <= 2; ++pass) {
      Tape tape;
      Context ctx;
      ctx.tape = &tape;
      tape.backward(attention(ctx, q, k, v, c.options, c.q_seqs, c.kv_seqs), c.d_o);
      const auto got = k.grad().to_vector(), want = once.dk.to_vector();
      for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == pass * want[i]);
    }
  }
}

TEST_CASE("attention: backward over many keys holds a bounded part of them") {
  const Case c = make_case({1, 1, 64}, {2}, {40000}, DType::f32);  // K, V, dK, dV of all keys: 41 MB
  const Var q = intermediate(c.q), k = intermediate(c.k), v = intermediate(c.v);
  Tape tape;
  Context ctx;
  ctx.tape = &tape;
  const Var o = attention(ctx, q, k, v, c.options, c.q_seqs, c.kv_seqs);
  allocator(Device::cpu).reset_peak();
  const std::int64_t before = allocator(Device::cpu).stats().current_bytes;
  tape.backward(o, c.d_o);
  const std::int64_t results = c.q.bytes() + c.k.bytes() + c.v.bytes();
  CHECK(allocator(Device::cpu).stats().peak_bytes - before <
        results + results / 8 + omp_get_max_threads() * (1 << 20));
  const Outcome plain = run(c, "plain");
  CHECK_CLOSE(k.node()->grad(), plain.dk, sum_tol(DType::f32, 40000, 1));
  CHECK_CLOSE(q.node()->grad(), plain.dq, sum_tol(DType::f32, 40000, 1));
}

TEST_CASE("attention: no rows, no sequences, nothing recorded without need" * doctest::test_suite("cuda")) {
  for (const Device device : devices())
    for (const char* variant : variants_on(device))
      for (const Lengths& lengths : {Lengths{}, Lengths{0}, Lengths{0, 0}}) {
        const Outcome r = run(make_case({4, 2, 8}, lengths, lengths, DType::f32, device), variant);
        CHECK(r.o.shape() == Shape{0, 32});
        CHECK(r.dk.shape() == Shape{0, 16});
      }
  const Case c = make_case({2, 1, 4}, {3}, {3});
  Tape tape;
  Context ctx;
  ctx.tape = &tape;
  CHECK_FALSE(attention(ctx, c.q, c.k, c.v, c.options, c.q_seqs, c.kv_seqs).needs_grad());
  CHECK(tape.size() == 0);
  // A result that nothing uses leaves its inputs without gradient.
  const Var q = intermediate(c.q);
  attention(ctx, q, c.k, c.v, c.options, c.q_seqs, c.kv_seqs);
  tape.backward(Var(c.q), c.q);
  CHECK_FALSE(q.node()->filled());
}

TEST_CASE("attention: cuda against the CPU, and twice the same bits" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool causal : {true, false}) {
      CAPTURE(dtype);
      CAPTURE(causal);
      const AttentionOptions options{.heads = 6, .kv_heads = 2, .head_dim = 40, .causal = causal};
      const Lengths queries{37, 0, 5, 70}, keys{37, 3, 90, 70};
      const Case host = make_case(options, queries, keys, dtype),
                 device = make_case(options, queries, keys, dtype, Device::cuda);
      const Outcome want = run(host, "tiled"), got = run(device, "tiled");
      check_same_bits(got, run(device, "tiled"));
      const double tolerance = dtype == DType::bf16 ? 0x1p-8 : 2e-6;
      CHECK(relative_error(got.o, want.o) < tolerance);
      CHECK(relative_error(got.dq, want.dq) < tolerance);
      CHECK(relative_error(got.dk, want.dk) < tolerance);
      CHECK(relative_error(got.dv, want.dv) < tolerance);
    }
}

TEST_CASE("attention: tensor cores round as FlashAttention-2 does" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  struct Sizes {
    AttentionOptions options;
    Lengths queries, keys;
  };
  const auto causal = [](std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim) {
    return AttentionOptions{heads, kv_heads, head_dim};
  };
  // Tiles have 128, 64 or 32 rows and 64, 48, 32 or 16 of the other kind. Each width of the kernels with a
  // head that fills it and one that does not, sequences without rows, queries at the end of longer keys, more
  // keys or queries than tiles of the other kind that a block has under way; dk and dv in one part and in
  // several.
  for (const Sizes& sizes : {Sizes{causal(3, 1, 64), {70, 0, 1}, {70, 5, 130}},
                             {causal(2, 2, 80), {33}, {65}},
                             {causal(16, 1, 128), {9, 17}, {9, 80}},
                             {causal(2, 1, 112), {129}, {129}},
                             {causal(1, 1, 160), {40}, {40}},
                             {causal(2, 1, 256), {20, 3}, {20, 70}},
                             {causal(4, 1, 128), {150, 7}, {200, 190}},
                             {causal(8, 8, 64), {100}, {150}},
                             {causal(20, 2, 192), {37}, {70}},
                             {{2, 1, 128, 0.2, false}, {30, 2}, {70, 64}}}) {
    CAPTURE(sizes.options.head_dim);
    const Case c = make_case(sizes.options, sizes.queries, sizes.keys, DType::bf16, Device::cuda);
    const Outcome got = run(c, "tiled"), exact = reference(c),
                  rounded =
                      reference(c, [](double x) { return static_cast<double>(bf16(static_cast<float>(x))); });
    check_same_bits(got, run(c, "tiled"));
    const auto no_worse = [](const Tensor& kernel, const Tensor& model, const Tensor& want) {
      CHECK(relative_error(kernel, want) < 1.05 * relative_error(model, want));
    };
    no_worse(got.o, rounded.o, exact.o);
    no_worse(got.dq, rounded.dq, exact.dq);
    no_worse(got.dk, rounded.dk, exact.dk);
    no_worse(got.dv, rounded.dv, exact.dv);
  }
}

TEST_CASE("attention: rows past 2^31 elements on cuda" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Case near = make_case({2, 1, 8}, {3}, {3}, dtype, Device::cuda);
    // Windows of one tensor, because a device has no memory for eight.
    const Tensor all = far_rows(Tensor::zeros({3, 512}, dtype, Device::cpu), Device::cuda);
    std::int64_t next = 0;
    const auto far = [&](const Tensor& t) {
      const Tensor window = all.narrow(-1, next, t.cols());
      next += 64;
      for (std::int64_t r = 0; r < t.rows(); ++r) window.narrow(0, r, 1).copy_from(t.narrow(0, r, 1));
      return window;
    };
    const auto gradients = [&](const auto& place) {
      Context ctx;
      AttentionInputs in = attention_inputs(ctx, place(near.q), place(near.k), place(near.v), near.options);
      in.pairs = {{{{0, 3}, {0, 3}}}, Device::cuda};
      const AttentionResult out{place(near.q), Tensor::empty({3, 2}, DType::f32, Device::cuda)};
      const AttentionGrads grads{place(near.q), place(near.k), place(near.v)};
      partial_attention(out, in, Into::set);
      partial_attention_backward(grads, place(near.d_o), out, in, Into::set);
      return Outcome{gathered_rows(out.o), gathered_rows(grads.dq), gathered_rows(grads.dk),
                     gathered_rows(grads.dv)};
    };
    check_same_bits(gradients(far), gradients([](const Tensor& t) { return t.clone(); }));
  }
}

TEST_CASE("attention: exp2 of the tile") {
  using cpu::attention::exp2_tile;
  double worst = 0;
  for (double x = -125.99; x < 0.5; x += 0.000137) {
    const auto rounded = static_cast<float>(x);
    const double want = std::exp2(static_cast<double>(rounded));
    worst = std::max(worst, std::abs(static_cast<double>(exp2_tile(rounded)) - want) / want);
  }
  CHECK(worst < 1.5e-7);
  CHECK(exp2_tile(0.0f) == 1.0f);
  CHECK(exp2_tile(-1.0f) == 0.5f);
  CHECK(exp2_tile(-126.5f) == 0.0f);
  CHECK(exp2_tile(-std::numeric_limits<float>::infinity()) == 0.0f);
  CHECK(std::isnan(exp2_tile(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("attention: errors") {
  const Case c = make_case({4, 2, 8}, {5, 3}, {5, 3}, DType::f32);
  Context ctx;
  const auto call = [&](const Case& x) { attention(ctx, x.q, x.k, x.v, x.options, x.q_seqs, x.kv_seqs); };
  CHECK_NOTHROW(call(c));
  const auto refuses = [&](auto&& change) {
    Case x = c;
    change(x);
    CHECK_THROWS_AS(call(x), Error);
  };
  refuses([](Case& x) { x.options.heads = 3; });
  refuses([](Case& x) { x.options.heads = 0; });
  refuses([](Case& x) { x.options.kv_heads = 0; });
  refuses([](Case& x) { x.options.head_dim = 0; });
  refuses([](Case& x) { x.options.head_dim = 7; });
  refuses([](Case& x) { x.options.scale = -1; });
  refuses([](Case& x) { x.options.scale = std::numeric_limits<double>::infinity(); });
  refuses([](Case& x) { x.q = Tensor(); });
  refuses([](Case& x) { x.q = x.q.reshape({8, 4, 8}); });
  refuses([](Case& x) { x.k = Tensor(); });
  refuses([](Case& x) { x.k = x.k.reshape({8, 2, 8}); });
  refuses([](Case& x) { x.v = Tensor(); });
  refuses([](Case& x) { x.k = x.q; });
  refuses([](Case& x) { x.v = x.v.narrow(0, 0, 7); });
  refuses([](Case& x) { x.k = x.k.to(DType::bf16); });
  refuses([](Case& x) { x.v = x.v.to(DType::f64); });
  refuses([](Case& x) { x.q = x.k = x.v = Tensor::zeros({8, 32}, DType::i32, Device::cpu); });
  refuses([](Case& x) {
    x.options.kv_heads = 4;
    x.q = x.k = x.v = Tensor::zeros({8, 32}, DType::i32, Device::cpu);
  });
  refuses([](Case& x) { x.q_seqs = Sequences::uniform(2, 3); });
  refuses([](Case& x) { x.kv_seqs = Sequences::uniform(2, 3); });
  refuses([](Case& x) { x.kv_seqs = Sequences::uniform(1, 8); });
  refuses([](Case& x) { x.q_seqs = Sequences({0, 9, 8}); });
  refuses([](Case& x) { x.q_seqs = Sequences(std::vector<std::int64_t>()); });
  CHECK_THROWS_AS(check_kernel_choice({{{"attention", "fast"}}}), Error);
}
