#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>
#include <functional>
#include <limits>

#include "core/kernel.h"
#include "core/variants.h"
#include "ops/attention/attention.h"
#include "ops/attention/attention_tiles_cpu.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"

// Window, softcap, slopes and query_scale of `attention`.

using namespace nemocube;
using namespace nemocube::testing;

namespace {

using Lengths = std::vector<std::int64_t>;

/// Which options a case has.
struct Extras {
  std::int64_t window = 0;
  double softcap = 0;
  bool slopes = false, query_scale = false;
};
constexpr Extras each[] = {{.window = 21}, {.softcap = 0.8}, {.slopes = true}, {.query_scale = true}};
constexpr Extras all{33, 0.8, true, true};

struct Case {
  AttentionOptions options;
  Sequences q_seqs, kv_seqs;
  Tensor q, k, v, d_o;
};

AttentionOptions with(AttentionOptions options, const Extras& extras, std::int64_t rows, DType dtype,
                      Device device = Device::cpu) {
  options.window = extras.window;
  options.softcap = extras.softcap;
  if (extras.slopes) {
    std::vector<double> slopes;
    for (std::int64_t h = 0; h < options.heads; ++h) slopes.push_back(0.3 / static_cast<double>(h + 1));
    options.slopes = Tensor::from(slopes, {options.heads}).to(DType::f32).to(device);
  }
  if (extras.query_scale) {
    std::vector<double> scale;
    for (std::int64_t i = 0; i < rows; ++i) scale.push_back(1 + 0.1 * static_cast<double>(i % 7));
    options.query_scale = Tensor::from(scale, {rows}).to(accumulate_dtype(dtype)).to(device);
  }
  return options;
}

Case make_case(const AttentionOptions& options, const Extras& extras, const Lengths& q_lengths,
               const Lengths& kv_lengths, DType dtype = DType::f64, Device device = Device::cpu) {
  Case c{options, Sequences::of_lengths(q_lengths), Sequences::of_lengths(kv_lengths), {}, {}, {}, {}};
  c.options = with(options, extras, c.q_seqs.tokens(), dtype, device);
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

std::vector<const char*> variants_on(Device device) {
  std::vector<const char*> variants{"tiled", "plain"};
  std::erase_if(variants, [&](const char* variant) { return !has_variant(device, "attention", variant); });
  return variants;
}

Outcome run(const Case& c, const char* variant) {
  const KernelChoice choice{{{"attention", variant}}};
  Tape tape;
  Context ctx{.tape = &tape, .kernels = &choice};
  const auto intermediate = [](const Tensor& t) {
    return Var(t, std::make_shared<GradNode>(t.shape(), t.dtype(), t.device(), false));
  };
  const Var q = intermediate(c.q), k = intermediate(c.k), v = intermediate(c.v);
  const Var o = attention(ctx, q, k, v, c.options, c.q_seqs, c.kv_seqs);
  tape.backward(o, c.d_o);
  return {o.value(), q.node()->grad(), k.node()->grad(), v.node()->grad()};
}

/// The contract as loops over single numbers, f64.
Outcome reference(const Case& c) {
  const AttentionOptions& a = c.options;
  const std::int64_t hd = a.head_dim, group = a.heads / a.kv_heads;
  const double scale = a.scale == 0 ? 1 / std::sqrt(static_cast<double>(hd)) : a.scale;
  const auto numbers = [](const Tensor& t) { return t ? t.to_vector() : std::vector<double>(); };
  const auto q = numbers(c.q), k = numbers(c.k), v = numbers(c.v), g = numbers(c.d_o),
             slopes = numbers(a.slopes), factors = numbers(a.query_scale);
  std::vector<double> o(q.size()), dq(q.size()), dk(k.size()), dv(k.size());
  const auto at = [](auto& x, std::int64_t i) -> auto& { return x[static_cast<std::size_t>(i)]; };
  for (std::int64_t s = 0; s < c.q_seqs.count(); ++s) {
    const std::int64_t keys = c.kv_seqs.length(s), before = keys - c.q_seqs.length(s);
    for (std::int64_t i = 0; i < c.q_seqs.length(s); ++i)
      for (std::int64_t h = 0; h < a.heads; ++h) {
        const std::int64_t row = c.q_seqs.begin(s) + i, qi = (row * a.heads + h) * hd;
        const auto key = [&](std::int64_t j) {
          return ((c.kv_seqs.begin(s) + j) * a.kv_heads + h / group) * hd;
        };
        const double factor = scale * (factors.empty() ? 1 : at(factors, row));
        const auto seen = [&](std::int64_t j) {
          const std::int64_t ago = i + before - j;
          return (!a.causal || ago >= 0) && (a.window == 0 || ago < a.window);
        };
        const auto product = [&](std::int64_t j) {
          double sum = 0;
          for (std::int64_t d = 0; d < hd; ++d) sum += at(q, qi + d) * at(k, key(j) + d);
          return factor * sum;
        };
        const auto weight = [&](std::int64_t j) {
          double y = product(j);
          if (a.softcap > 0) y = a.softcap * std::tanh(y / a.softcap);
          if (!slopes.empty()) y -= at(slopes, h) * static_cast<double>(i + before - j);
          return seen(j) ? std::exp(y) : 0;
        };
        double sum = 0, delta = 0;
        for (std::int64_t j = 0; j < keys; ++j) sum += weight(j);
        for (std::int64_t j = 0; j < keys && sum > 0; ++j)
          for (std::int64_t d = 0; d < hd; ++d) at(o, qi + d) += weight(j) / sum * at(v, key(j) + d);
        for (std::int64_t d = 0; d < hd; ++d) delta += at(o, qi + d) * at(g, qi + d);
        for (std::int64_t j = 0; j < keys; ++j) {
          if (!seen(j)) continue;
          const double p = weight(j) / sum;
          double dp = 0;
          for (std::int64_t d = 0; d < hd; ++d) dp += at(g, qi + d) * at(v, key(j) + d);
          double ds = p * (dp - delta);
          if (a.softcap > 0) {
            const double y = std::tanh(product(j) / a.softcap);
            ds *= 1 - y * y;
          }
          for (std::int64_t d = 0; d < hd; ++d) {
            at(dq, qi + d) += factor * ds * at(k, key(j) + d);
            at(dk, key(j) + d) += factor * ds * at(q, qi + d);
            at(dv, key(j) + d) += p * at(g, qi + d);
          }
        }
      }
  }
  return {Tensor::from(o, c.q.shape()), Tensor::from(dq, c.q.shape()), Tensor::from(dk, c.k.shape()),
          Tensor::from(dv, c.k.shape())};
}

/// Tolerances as in attention_test.cpp, with scores up to 1.6 times as large.
void check_case(const Case& c, const char* variant) {
  CAPTURE(variant);
  CAPTURE(c.options.heads);
  CAPTURE(c.options.head_dim);
  CAPTURE(c.options.window);
  CAPTURE(c.options.softcap);
  CAPTURE(c.options.slopes.defined());
  CAPTURE(c.options.query_scale.defined());
  const Outcome got = run(c, variant), want = reference(c);
  if (c.q.dtype() == DType::bf16) {
    CHECK(relative_error(got.o, want.o) < 0x1p-7);
    CHECK(relative_error(got.dq, want.dq) < 0x1p-7);
    CHECK(relative_error(got.dk, want.dk) < 0x1p-7);
    CHECK(relative_error(got.dv, want.dv) < 0x1p-7);
    return;
  }
  const std::int64_t keys = c.kv_seqs.longest(), queries = c.q_seqs.longest(),
                     group = c.options.heads / c.options.kv_heads, hd = c.options.head_dim;
  CHECK_CLOSE(got.o, want.o, sum_tol(c.q.dtype(), hd + keys, 6));
  CHECK_CLOSE(got.dq, want.dq, sum_tol(c.q.dtype(), hd + keys, 13));
  CHECK_CLOSE(got.dk, want.dk, sum_tol(c.q.dtype(), hd + queries * group, 25));
  CHECK_CLOSE(got.dv, want.dv, sum_tol(c.q.dtype(), hd + queries * group, 25));
}

void check_same_bits(const Outcome& a, const Outcome& b) {
  CHECK_BITS(a.o, b.o);
  CHECK_BITS(a.dq, b.dq);
  CHECK_BITS(a.dk, b.dk);
  CHECK_BITS(a.dv, b.dv);
}

bool finite(const Tensor& t) {
  return std::ranges::all_of(t.to_vector(), [](double x) { return std::isfinite(x); });
}

}  // namespace

TEST_CASE("attention options: against the direct loops") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const char* variant : {"tiled", "plain"}) {
      const auto check = [&](const AttentionOptions& o, const Extras& extras, const Lengths& q,
                             const Lengths& kv) { check_case(make_case(o, extras, q, kv, dtype), variant); };
      for (const Extras& extras : each) {
        check({4, 4, 16}, extras, {150, 0, 1}, {150, 0, 1});
        check({3, 1, 16}, extras, {97, 5}, {201, 130});
        check({4, 1, 8}, extras, {40, 3}, {33, 0});
      }
      for (const std::int64_t window : {1, 2, 31, 32, 95, 96, 97, 140, 141, 1000})
        check({4, 1, 16}, {.window = window}, {140}, {140});
      for (const std::int64_t head_dim : {16, 64, 80, 96, 128, 256, 512})
        check({3, 1, head_dim}, all, {45, 7}, {45, 80});
      check({4, 2, 8, 0.7, false}, {0, 1.5, true, true}, {5, 100, 1}, {97, 3, 200});
    }
}

TEST_CASE("attention options: against the direct loops on cuda" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  for (const Extras& extras : each) {
    check_case(make_case({2, 2, 16}, extras, {70, 0, 1}, {70, 3, 1}, DType::f32, Device::cuda), "tiled");
    check_case(make_case({3, 1, 16}, extras, {21, 3}, {90, 0}, DType::f32, Device::cuda), "tiled");
  }
  for (const std::int64_t window : {1, 64, 1000})
    check_case(make_case({4, 1, 8}, {.window = window}, {67}, {67}, DType::f32, Device::cuda), "tiled");
}

TEST_CASE("attention options: all together, every head size on cuda" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  for (const std::int64_t head_dim : {16, 130})
    check_case(make_case({3, 1, head_dim}, all, {20, 3}, {70, 9}, DType::f32, Device::cuda), "tiled");
  check_case(make_case({2, 2, 40}, all, {50}, {50}, DType::bf16, Device::cuda), "tiled");
  for (const DType dtype : {DType::f32, DType::bf16})
    check_case(make_case({2, 1, 512}, all, {9}, {67}, dtype, Device::cuda), "tiled");
  check_case(
      make_case({4, 2, 8, 0.7, false}, {0, 1.5, true, true}, {5, 40}, {70, 3}, DType::f32, Device::cuda),
      "tiled");
}

TEST_CASE("attention options: on tensor cores" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const auto check = [](const AttentionOptions& o, const Extras& extras, const Lengths& q,
                        const Lengths& kv) {
    const Case c = make_case(o, extras, q, kv, DType::bf16, Device::cuda);
    check_case(c, "tiled");
  };
  for (const Extras& extras : each) check({3, 1, 64}, extras, {50, 3}, {110, 9});
  for (const std::int64_t window : {1, 48, 1000}) check({1, 1, 64}, {.window = window}, {140}, {140});
}

TEST_CASE("attention options: all together on tensor cores" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const auto check = [](const AttentionOptions& o, const Lengths& q, const Lengths& kv) {
    const Case c = make_case(o, all, q, kv, DType::bf16, Device::cuda);
    check_case(c, "tiled");
    check_same_bits(run(c, "tiled"), run(c, "tiled"));
  };
  check({4, 1, 64}, {30, 0, 1}, {70, 5, 130});
  check({2, 2, 80}, {33}, {65});
  check({3, 1, 96}, {40}, {40});
  check({4, 1, 128}, {21, 7}, {90, 19});
  check({1, 1, 160}, {40}, {40});
  check({2, 1, 256}, {20, 3}, {20, 70});
  check_case(
      make_case({2, 1, 128, 0.2, false}, {0, 1.5, true, true}, {30, 2}, {70, 64}, DType::bf16, Device::cuda),
      "tiled");
}

TEST_CASE("attention options: against finite differences") {
  for (const char* variant : {"tiled", "plain"}) {
    const KernelChoice choice{{{"attention", variant}}};
    const auto check = [&](const AttentionOptions& o, const Extras& extras, const Lengths& q,
                           const Lengths& kv) {
      CAPTURE(variant);
      CAPTURE(extras.window);
      CAPTURE(extras.softcap);
      const Case c = make_case(o, extras, q, kv);
      CHECK_GRADIENTS(
          [&](Context& ctx, const std::vector<Var>& x) {
            Context chosen = ctx;
            chosen.kernels = &choice;
            return std::vector<Var>{attention(chosen, x[0], x[1], x[2], c.options, c.q_seqs, c.kv_seqs)};
          },
          {c.q, c.k, c.v});
    };
    for (const Extras& extras :
         {Extras{.window = 1}, Extras{.window = 2}, Extras{.softcap = 0.8}, Extras{.slopes = true},
          Extras{.query_scale = true}, Extras{3, 0.8, true, true}}) {
      check({4, 2, 3}, extras, {5, 1, 3}, {5, 1, 3});
      check({3, 1, 2, 0.9}, extras, {3, 4}, {6, 2});
    }
    check({2, 2, 3, 0.9, false}, {0, 0.8, true, true}, {4, 2}, {3, 5});
  }
}

TEST_CASE("attention options: a window of 1 gives the values, one of all keys what there is without" *
          doctest::test_suite("cuda")) {
  for_dtypes(devices(), [](Device device, DType dtype) {
    for (const char* variant : variants_on(device)) {
      const AttentionOptions options{2, 2, 64};
      const auto outcome = [&](std::int64_t window) {
        return run(make_case(options, {.window = window}, {70, 3}, {70, 3}, dtype, device), variant);
      };
      const Case c = make_case(options, {}, {70, 3}, {70, 3}, dtype, device);
      CHECK_CLOSE(outcome(1).o, c.v, sum_tol(dtype, 1, 4));
      const Outcome without = run(c, variant);
      for (const std::int64_t window : {70, 1000}) {
        const Outcome got = outcome(window);
        CHECK_CLOSE(got.o, without.o, sum_tol(dtype, 70, 4));
        CHECK_CLOSE(got.dq, without.dq, sum_tol(dtype, 70, 8));
        CHECK_CLOSE(got.dk, without.dk, sum_tol(dtype, 70, 16));
        CHECK_CLOSE(got.dv, without.dv, sum_tol(dtype, 70, 16));
      }
    }
  });
}

TEST_CASE("attention options: rows outside of the window are not read" * doctest::test_suite("cuda")) {
  // Tiles have at most 96 keys or 64 queries, 64 of each on CUDA. What is beyond a window and a tile is NaN,
  // which a weight of 0 would not hide.
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Device device : devices())
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const char* variant : variants_on(device)) {
        CAPTURE(device.is_cuda());
        CAPTURE(variant);
        const std::int64_t length = device.is_cuda() ? 140 : 300, window = 10, some = length / 3,
                           reach = (device.is_cuda() ? 64 : 96) + window;
        const AttentionOptions options{2, 1, dtype == DType::bf16 ? 64 : 16};
        const Case clean = make_case(options, {.window = window}, {length}, {length}, dtype, device);
        const Outcome want = run(clean, variant);
        // The first keys: queries from some + reach on.
        Case c = clean;
        c.k = c.k.clone();
        c.v = c.v.clone();
        for (const Tensor& t : {c.k, c.v}) t.narrow(0, 0, some).fill(nan);
        const Outcome keys = run(c, variant);
        const auto last = [&](const Tensor& t) { return t.narrow(0, some + reach, length - some - reach); };
        CHECK_BITS(last(keys.o), last(want.o));
        CHECK_BITS(last(keys.dq), last(want.dq));
        // The last queries: keys before length - some - reach.
        c = clean;
        c.q = c.q.clone();
        c.d_o = c.d_o.clone();
        for (const Tensor& t : {c.q, c.d_o}) t.narrow(0, length - some, some).fill(nan);
        const Outcome queries = run(c, variant);
        const auto first = [&](const Tensor& t) { return t.narrow(0, 0, length - some - reach); };
        CHECK_BITS(first(queries.dk), first(want.dk));
        CHECK_BITS(first(queries.dv), first(want.dv));
        // The queries of a step of decoding read the window alone.
        c = make_case(options, {.window = window}, {2}, {length}, dtype, device);
        for (const Tensor& t : {c.k, c.v}) t.narrow(0, 0, length - window - 1).fill(nan);
        const Outcome step = run(c, variant);
        CHECK(finite(step.o));
        CHECK(finite(step.dq));
        for (const Tensor& t : {step.dk, step.dv})
          CHECK(std::ranges::all_of(t.narrow(0, 0, length - window - 1).to_vector(),
                                    [](double x) { return x == 0; }));
      }
}

TEST_CASE("attention options: packed sequences give the bits of separate ones" *
          doctest::test_suite("cuda")) {
  for_dtypes(devices(), [](Device device, DType dtype) {
    for (const char* variant : variants_on(device)) {
      const Lengths lengths = device.is_cuda() ? Lengths{33, 1, 50, 0} : Lengths{33, 1, 130, 0, 96};
      const Case whole =
          make_case({4, 2, dtype == DType::bf16 ? 64 : 16}, all, lengths, lengths, dtype, device);
      const Outcome packed = run(whole, variant);
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        const std::int64_t first = whole.q_seqs.begin(static_cast<std::int64_t>(i)), n = lengths[i];
        const auto cut = [&](const Tensor& t) { return t.narrow(0, first, n); };
        const Sequences one = Sequences::uniform(1, n);
        Case c{whole.options, one, one, cut(whole.q), cut(whole.k), cut(whole.v), cut(whole.d_o)};
        c.options.query_scale = cut(whole.options.query_scale);
        check_same_bits({cut(packed.o), cut(packed.dq), cut(packed.dk), cut(packed.dv)}, run(c, variant));
      }
    }
  });
}

TEST_CASE("attention options: token by token with a cache is the prefill, within rounding" *
          doctest::test_suite("cuda")) {
  for (const Device device : devices())
    for (const char* variant : variants_on(device)) {
      const std::int64_t n = 101;
      const KernelChoice choice{{{"attention", variant}}};
      Context ctx{.kernels = &choice};
      const Case c = make_case({4, 2, 16}, all, {n}, {n}, DType::f32, device);
      const Tensor prefill = attention(ctx, c.q, c.k, c.v, c.options, c.q_seqs, c.kv_seqs).value();
      for (std::int64_t t = 0; t < n; t += device.is_cuda() ? 33 : 1) {
        AttentionOptions options = c.options;
        options.query_scale = c.options.query_scale.narrow(0, t, 1);
        const Sequences one = Sequences::uniform(1, 1), seen = Sequences::uniform(1, t + 1);
        const Tensor o = attention(ctx, c.q.narrow(0, t, 1), c.k.narrow(0, 0, t + 1), c.v.narrow(0, 0, t + 1),
                                   options, one, seen)
                             .value();
        CHECK_CLOSE(o, prefill.narrow(0, t, 1), sum_tol(DType::f32, 16 + n, 4));
      }
    }
}

TEST_CASE("attention options: bits do not depend on the number of threads, nor on the guard device") {
  const int before = omp_get_max_threads();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const char* variant : {"tiled", "plain"})
      for (const Lengths& lengths : {Lengths{300}, Lengths{40, 197, 3}}) {
        const Case c = make_case({4, 1, 16}, all, lengths, lengths, dtype);
        omp_set_num_threads(1);
        const Outcome one = run(c, variant);
        omp_set_num_threads(3);
        check_same_bits(one, run(c, variant));
        omp_set_num_threads(before);
        const Case guarded = make_case({4, 1, 16}, all, lengths, lengths, dtype, Device::guard);
        check_same_bits(one, run(guarded, variant));
      }
}

TEST_CASE("attention options: tanh of the tile") {
  using cpu::attention::tanh_tile;
  double worst = 0;
  for (double x = -12; x < 12; x += 0.000137) {
    const auto rounded = static_cast<float>(x);
    const double want = std::tanh(static_cast<double>(rounded));
    worst = std::max(worst, std::abs(static_cast<double>(tanh_tile(rounded)) - want) / std::abs(want));
  }
  CHECK(worst < 5e-7);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  CHECK(tanh_tile(0.0f) == 0.0f);
  CHECK(tanh_tile(1e30f) == 1.0f);
  CHECK(tanh_tile(infinity) == 1.0f);
  CHECK(tanh_tile(-infinity) == -1.0f);
  CHECK(std::isnan(tanh_tile(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("attention options: errors") {
  const Case c = make_case({4, 2, 8}, all, {5, 3}, {5, 3}, DType::f32);
  Context ctx;
  const auto call = [&](const AttentionOptions& options) {
    attention(ctx, c.q, c.k, c.v, options, c.q_seqs, c.kv_seqs);
  };
  CHECK_NOTHROW(call(c.options));
  const auto refuses = [&](auto&& change) {
    AttentionOptions options = c.options;
    change(options);
    CHECK_THROWS_AS(call(options), Error);
  };
  const auto zeros = [](std::int64_t n, DType dtype) { return Tensor::zeros({n}, dtype, Device::cpu); };
  refuses([](AttentionOptions& o) { o.window = -1; });
  refuses([](AttentionOptions& o) { o.causal = false; });
  refuses([](AttentionOptions& o) { o.softcap = -1; });
  refuses([](AttentionOptions& o) { o.softcap = std::numeric_limits<double>::quiet_NaN(); });
  refuses([&](AttentionOptions& o) { o.slopes = zeros(2, DType::f32); });
  refuses([&](AttentionOptions& o) { o.slopes = zeros(4, DType::f64); });
  refuses([&](AttentionOptions& o) { o.slopes = zeros(4, DType::f32).to(Device::guard); });
  refuses([&](AttentionOptions& o) { o.query_scale = zeros(7, DType::f32); });
  refuses([&](AttentionOptions& o) { o.query_scale = zeros(8, DType::bf16); });
  refuses([&](AttentionOptions& o) { o.query_scale = zeros(8, DType::f32).reshape({8, 1}); });
}
