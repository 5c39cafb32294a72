#include "ops/attention/partial_attention.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <limits>

#include "core/kernel.h"
#include "core/variants.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

constexpr std::int64_t queries = 150, keys = 333;
const AttentionOptions sizes{4, 2, 12};

struct Whole {
  AttentionInputs in;
  AttentionResult out;
  Tensor d_o;
  AttentionGrads grads;
};

Tensor empty_like(const Tensor& t, DType dtype) { return Tensor::empty(t.shape(), dtype, t.device()); }

/// The variants that a device has.
std::vector<const char*> variants_on(Device device) {
  std::vector<const char*> variants{"tiled", "plain"};
  std::erase_if(variants, [&](const char* variant) { return !has_variant(device, "attention", variant); });
  return variants;
}

bool all_are(double value, const Tensor& t) {
  return std::ranges::all_of(t.to_vector(), [&](double x) { return x == value; });
}

/// In one call, with o and gradients in the dtype of q.
Whole whole(const char* variant, DType dtype, bool causal, Device device = Device::cpu) {
  const KernelChoice choice{{{"attention", variant}}};
  Context ctx;
  ctx.kernels = &choice;
  AttentionOptions options = sizes;
  options.causal = causal;
  const Shape q{queries, sizes.heads * sizes.head_dim}, k{keys, sizes.kv_heads * sizes.head_dim};
  const auto random = [&](const Shape& shape, std::uint64_t seed) {
    return random_tensor(shape, dtype, seed).to(device);
  };
  const auto empty = [&](const Shape& shape) { return Tensor::empty(shape, dtype, device); };
  Whole w{attention_inputs(ctx, random(q, 1), random(k, 2), random(k, 3), options),
          {empty(q), Tensor::empty({queries, sizes.heads}, accumulate_dtype(dtype), device)},
          random(q, 4),
          {empty(q), empty(k), empty(k)}};
  w.in.pairs = {{{{0, queries}, {0, keys}}}, device};
  partial_attention(w.out, w.in, Into::set);
  partial_attention_backward(w.grads, w.d_o, w.out, w.in, Into::set);
  return w;
}

/// The calls that together make the whole: keys in three parts, of which a causal query sees the first two
/// and a part of the last. Queries come in two ranges.
std::vector<AttentionInputs> pieces(const Whole& w) {
  std::vector<AttentionInputs> calls;
  const std::int64_t seen_by_all = keys - queries;
  for (const auto& [first, last] : {Range{0, 96}, Range{96, seen_by_all}, Range{seen_by_all, keys}}) {
    const bool masked = w.in.options.causal && last == keys;
    AttentionInputs in = w.in;
    in.options.causal = masked;
    // A causal pair's queries stand at its last keys.
    in.pairs = {{{{0, 70}, {first, masked ? first + 70 : last}}}, in.q.device()};
    calls.push_back(in);
    in.pairs = {{{{70, queries}, {first, last}}}, in.q.device()};
    calls.push_back(in);
  }
  return calls;
}

}  // namespace

TEST_CASE("partial attention: pieces of keys make the whole" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices("attention"), [](Device device, DType dtype) {
    for (const char* variant : variants_on(device))
      for (const bool causal : {true, false}) {
        CAPTURE(variant);
        CAPTURE(causal);
        const Whole w = whole(variant, dtype, causal, device);
        const DType sums = accumulate_dtype(dtype);
        const AttentionResult out{empty_like(w.out.o, sums), empty_like(w.out.lse, sums)};
        const AttentionGrads grads{Tensor::zeros(w.in.q.shape(), sums, device),
                                   Tensor::zeros(w.in.k.shape(), sums, device),
                                   Tensor::zeros(w.in.v.shape(), sums, device)};
        std::size_t call = 0;
        for (const AttentionInputs& in : pieces(w))
          partial_attention(out, in, call++ < 2 ? Into::set : Into::add);
        for (const AttentionInputs& in : pieces(w))
          partial_attention_backward(grads, w.d_o, {out.o.to(dtype), out.lse}, in, Into::add);
        // One rounding of o and of each gradient to the dtype of q sets the two apart in bf16; delta is
        // formed from the rounded o in both.
        const double tolerance = dtype == DType::f64 ? 1e-13 : dtype == DType::f32 ? 2e-6 : 0x1p-8;
        CHECK(relative_error(out.o, w.out.o) < tolerance);
        CHECK(relative_error(out.lse, w.out.lse) < (dtype == DType::f64 ? 1e-13 : 1e-6));
        CHECK(relative_error(grads.dq, w.grads.dq) < tolerance);
        CHECK(relative_error(grads.dk, w.grads.dk) < tolerance);
        CHECK(relative_error(grads.dv, w.grads.dv) < tolerance);
      }
  });
}

TEST_CASE(
    "partial attention: rows outside of the pairs stay as they are; gradients that nobody wants are left "
    "out" *
    doctest::test_suite("cuda")) {
  for (const Device device : test_devices("attention"))
    for (const char* variant : variants_on(device))
      for (const Into how : {Into::set, Into::add}) {
        Whole w = whole(variant, DType::f32, false, device);
        w.in.pairs = {{{{10, 20}, {5, 9}}, {{0, 0}, {9, 30}}, {{30, 31}, {40, 40}}}, w.in.q.device()};
        for (const Tensor& t : {w.out.o, w.out.lse, w.grads.dq, w.grads.dk, w.grads.dv}) t.fill(7);
        partial_attention(w.out, w.in, how);
        partial_attention_backward(w.grads, w.d_o, w.out, w.in, how);
        partial_attention_backward({}, w.d_o, w.out, w.in, how);
        const auto stays = [](const Tensor& t, std::int64_t begin, std::int64_t end) {
          CHECK(all_are(7, t.narrow(0, begin, end - begin)));
        };
        for (const Tensor& t : {w.out.o, w.out.lse, w.grads.dq}) {
          stays(t, 0, 10);
          stays(t, 20, 30);
          stays(t, 31, queries);
        }
        for (const Tensor& t : {w.grads.dk, w.grads.dv}) {
          stays(t, 0, 5);
          stays(t, 30, keys);
        }
        CHECK(w.grads.dk.to_vector()[5 * 24] != 7);
      }
}

TEST_CASE("partial attention: queries that have seen no key yet take the next ones as the first" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices("attention"))
    for (const char* variant : variants_on(device)) {
      const DType dtype = device.is_cuda() ? DType::f32 : DType::f64;
      Whole w = whole(variant, dtype, true, device);
      AttentionInputs none = w.in;
      none.pairs = {{{{0, queries}, {0, 0}}}, device};
      const AttentionResult out{empty_like(w.out.o, dtype), empty_like(w.out.lse, dtype)};
      partial_attention(out, none, Into::set);
      CHECK(all_are(0, out.o));
      CHECK(all_are(-std::numeric_limits<double>::infinity(), out.lse));
      partial_attention(out, none, Into::add);
      partial_attention(out, w.in, Into::add);
      CHECK_BITS(out.o, w.out.o);
      CHECK_BITS(out.lse, w.out.lse);
    }
}

TEST_CASE("partial attention: pairs anywhere in a sequence, by their distances" *
          doctest::test_suite("cuda")) {
  // Queries and keys of one sequence, in ranges whose order is not that of the sequence.
  constexpr std::int64_t length = 200;
  const std::array ranges{Range{0, 33}, Range{33, 120}, Range{120, 121}, Range{121, length}};
  for_dtypes(test_devices("attention"), [&](Device device, DType dtype) {
    const AttentionOptions causal{4, 2, dtype == DType::bf16 ? 64 : 12};
    AttentionOptions window = causal, everything = causal, both_ways = causal;
    window.window = 40;
    everything.window = 70;
    everything.softcap = both_ways.softcap = 0.9;
    everything.slopes = both_ways.slopes =
        Tensor::from(std::vector<float>{0.3F, 0.2F, 0.02F, 0}, {4}).to(device);
    everything.query_scale = random_tensor({length}, accumulate_dtype(dtype), 5).to(device);
    both_ways.causal = false;
    for (const char* variant : variants_on(device))
      for (const AttentionOptions& options : {causal, window, everything, both_ways}) {
        // The software GPU takes its time.
        if (device.is_cuda() && options.window == 40) continue;
        CAPTURE(variant);
        CAPTURE(options.window);
        CAPTURE(options.causal);
        const KernelChoice choice{{{"attention", variant}}};
        Context ctx{.kernels = &choice};
        const Shape q{length, options.heads * options.head_dim},
            k{length, options.kv_heads * options.head_dim};
        const auto random = [&](const Shape& shape, std::uint64_t seed) {
          return random_tensor(shape, dtype, seed).to(device);
        };
        AttentionInputs in = attention_inputs(ctx, random(q, 1), random(k, 2), random(k, 3), options);
        const Tensor d_o = random(q, 4);
        const DType sums = accumulate_dtype(dtype);
        const auto results = [&] {
          return std::pair(AttentionResult{Tensor::empty(q, sums, device),
                                           Tensor::empty({length, options.heads}, sums, device)},
                           AttentionGrads{Tensor::zeros(q, sums, device), Tensor::zeros(k, sums, device),
                                          Tensor::zeros(k, sums, device)});
        };
        const auto [want, want_grads] = results();
        in.pairs = {{{{0, length}, {0, length}}}, device};
        partial_attention(want, in, Into::set);
        partial_attention_backward(want_grads, d_o, {want.o.to(dtype), want.lse}, in, Into::add);
        const auto [got, grads] = results();
        const auto for_pieces = [&](auto&& call) {
          for (std::size_t step = 0; step < ranges.size(); ++step) {
            std::vector<AttentionPair> pairs;
            for (std::size_t i = 0; i < ranges.size(); ++i) {
              const Range &of_q = ranges[i], &of_k = ranges[(i + step) % ranges.size()];
              pairs.push_back({of_q, of_k, of_q.begin - of_k.begin});
            }
            in.pairs = {pairs, device};
            call(step == 0 ? Into::set : Into::add);
          }
        };
        for_pieces([&](Into how) { partial_attention(got, in, how); });
        for_pieces([&](Into) {
          partial_attention_backward(grads, d_o, {got.o.to(dtype), got.lse}, in, Into::add);
        });
        const double tolerance = dtype == DType::f64 ? 1e-13 : dtype == DType::f32 ? 4e-6 : 0x1p-7;
        CHECK(relative_error(got.o, want.o) < tolerance);
        CHECK(relative_error(got.lse, want.lse) < (dtype == DType::f64 ? 1e-13 : 1e-6));
        CHECK(relative_error(grads.dq, want_grads.dq) < tolerance);
        CHECK(relative_error(grads.dk, want_grads.dk) < tolerance);
        CHECK(relative_error(grads.dv, want_grads.dv) < tolerance);
      }
  });
}

TEST_CASE("partial attention: keys that no query sees get a gradient of 0, and with Into::add keep theirs" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices("attention"))
    for (const char* variant : variants_on(device)) {
      Whole w = whole(variant, DType::f32, true, device);
      w.in.options.window = 5;
      // Three queries at keys 99 to 101 of 150, and ten beyond the window of any key.
      w.in.pairs = {{{{0, 3}, {0, 150}, 99}, {{3, 13}, {150, 200}, 60}}, device};
      partial_attention(w.out, w.in, Into::set);
      CHECK(all_are(0, w.out.o.narrow(0, 3, 10)));
      CHECK(all_are(-std::numeric_limits<double>::infinity(), w.out.lse.narrow(0, 3, 10)));
      for (const Into how : {Into::set, Into::add}) {
        for (const Tensor& t : {w.grads.dq, w.grads.dk, w.grads.dv}) t.fill(7);
        partial_attention_backward(w.grads, w.d_o, w.out, w.in, how);
        const double kept = how == Into::set ? 0 : 7;
        CHECK(all_are(kept, w.grads.dq.narrow(0, 3, 10)));
        for (const Tensor& t : {w.grads.dk, w.grads.dv}) {
          CHECK(all_are(kept, t.narrow(0, 0, 95)));
          CHECK(all_are(kept, t.narrow(0, 102, 98)));
          CHECK(all_are(7, t.narrow(0, 200, keys - 200)));
          CHECK_FALSE(all_are(kept, t.narrow(0, 95, 7)));
        }
      }
    }
}

TEST_CASE("partial attention: pairs outside of the rows are refused") {
  Whole w = whole("tiled", DType::f32, false);
  for (const AttentionPair& wrong : {AttentionPair{{0, queries + 1}, {0, 1}}, AttentionPair{{0, 1}, {-1, 1}},
                                     AttentionPair{{3, 2}, {0, 1}}, AttentionPair{{0, 1}, {0, keys + 1}}}) {
    w.in.pairs = {{wrong}, w.in.q.device()};
    CHECK_THROWS_AS(partial_attention(w.out, w.in, Into::set), std::logic_error);
    CHECK_THROWS_AS(partial_attention_backward(w.grads, w.d_o, w.out, w.in, Into::set), std::logic_error);
  }
}
