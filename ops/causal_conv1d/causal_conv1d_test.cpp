#include "ops/causal_conv1d/causal_conv1d.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <array>
#include <cmath>
#include <utility>

#include "ops/view/view.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/far_rows.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

/// The formula of the header in f64, one output at a time.
Tensor reference(const Tensor& x, const Tensor& weight, const Tensor& bias, const Sequences& sequences,
                 const Tensor& state = {}) {
  const std::int64_t channels = x.cols(), taps = weight.cols();
  const auto v = x.to_vector(), w = weight.to_vector();
  const auto b = bias.defined() ? bias.to_vector() : std::vector<double>(static_cast<std::size_t>(channels));
  const auto s = state.defined() ? state.to_vector() : std::vector<double>();
  Tensor y = Tensor::empty(x.shape(), DType::f64, Device::cpu);
  for (std::int64_t i = 0; i < sequences.count(); ++i)
    for (std::int64_t t = 0; t < sequences.length(i); ++t)
      for (std::int64_t c = 0; c < channels; ++c) {
        double sum = b[static_cast<std::size_t>(c)];
        for (std::int64_t k = 0; k < taps; ++k) {
          const std::int64_t p = t - taps + 1 + k;
          double value = 0;
          if (p >= 0)
            value = v[static_cast<std::size_t>((sequences.begin(i) + p) * channels + c)];
          else if (state.defined())
            value = s[static_cast<std::size_t>((i * (taps - 1) + taps - 1 + p) * channels + c)];
          sum += w[static_cast<std::size_t>(c * taps + k)] * value;
        }
        y.row<double>(sequences.begin(i) + t)[c] = sum / (1 + std::exp(-sum));
      }
  return y;
}

struct Case {
  Tensor x, weight, bias;
  Sequences sequences;
};

/// x is a window that starts `start` columns into wider rows. Every row starts at a multiple of 16 bytes when
/// `start` and `channels` are multiples of 8.
Case make_case(const std::vector<std::int64_t>& lengths, std::int64_t channels, std::int64_t taps,
               DType dtype, Device device = Device::cpu, std::int64_t start = 3) {
  Case c;
  c.sequences = Sequences::of_lengths(lengths);
  const std::int64_t tokens = c.sequences.tokens();
  c.x = random_tensor({tokens, channels + start + 8}, dtype, 1).to(device).narrow(-1, start, channels);
  c.weight = random_tensor({channels, 1, taps}, dtype, 2, 0.7).to(device);
  c.bias = random_tensor({channels}, dtype, 3, 0.5).to(device);
  return c;
}

/// y, and the gradients of x, weight and bias for a random dy; the final state, too, when there is an initial
/// one.
std::vector<Tensor> run(const Case& c, const Tensor* state = nullptr) {
  Tape tape;
  Context ctx;
  ctx.tape = &tape;
  const Var x = Var::leaf(c.x), weight = Var::leaf(c.weight), bias = Var::leaf(c.bias);
  Tensor end;
  const Var y = causal_conv1d_silu(ctx, x, weight, bias, c.sequences, state, state ? &end : nullptr);
  tape.backward(y, random_tensor(y.shape(), c.x.dtype(), 4).to(c.x.device()));
  std::vector<Tensor> all{y.value(), x.grad(), weight.grad(), bias.grad()};
  if (state) all.push_back(end);
  return all;
}

Case on(const Case& c, Device device) {
  return {c.x.to(device), c.weight.to(device), c.bias.to(device), c.sequences};
}
Case contiguous(const Case& c) { return {c.x.clone(), c.weight, c.bias, c.sequences}; }
Case as_dtype(const Case& c, DType dtype) {
  return {c.x.to(dtype), c.weight.to(dtype), c.bias.to(dtype), c.sequences};
}

}  // namespace

TEST_CASE("causal_conv1d_silu: the same bits on the guard device") {
  for_dtypes({Device::guard}, [](Device device, DType dtype) {
    const Case c = make_case({70, 0, 1, 5}, 9, 4, dtype);
    const Tensor state = random_tensor({4, 3, 9}, accumulate_dtype(dtype), 4), there = state.to(device);
    const auto got = run(on(c, device), &there), want = run(c, &state);
    for (std::size_t i = 0; i < want.size(); ++i) CHECK_BITS(got[i], want[i]);
  });
}

TEST_CASE("causal_conv1d: against the formula, any taps and lengths" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices("causal_conv1d"), [](Device device, DType dtype) {
    for (const std::int64_t taps : {1, 2, 3, 4, 5, 9})
      for (const auto& [channels, start] :
           {std::pair<std::int64_t, std::int64_t>{1, 3}, {7, 3}, {300, 3}, {264, 8}}) {
        CAPTURE(taps);
        CAPTURE(channels);
        const Case c = make_case({5, 0, 1, 70, 3}, channels, taps, dtype, device, start);
        const Tensor state = random_tensor({5, taps - 1, channels}, accumulate_dtype(dtype), 9).to(device);
        const Tol tol = sum_tol(dtype, taps, 4);
        Context ctx;
        const Var y = causal_conv1d_silu(ctx, c.x, c.weight, c.bias, c.sequences);
        CHECK_CLOSE(y.value(), reference(c.x, c.weight, c.bias, c.sequences), tol);
        const Var without = causal_conv1d_silu(ctx, c.x, c.weight, Var(), c.sequences);
        CHECK_CLOSE(without.value(), reference(c.x, c.weight, Tensor(), c.sequences), tol);
        const Var with_state = causal_conv1d_silu(ctx, c.x, c.weight, c.bias, c.sequences, &state);
        CHECK_CLOSE(with_state.value(), reference(c.x, c.weight, c.bias, c.sequences, state), tol);
      }
  });
}

TEST_CASE("causal_conv1d: against finite differences") {
  for (const std::int64_t taps : {1, 2, 4, 6}) {
    CAPTURE(taps);
    const Case c = make_case({5, 0, 1, 9, 2}, 3, taps, DType::f64);
    const Tensor state = random_tensor({5, taps - 1, 3}, DType::f64, 9);
    for (const Tensor* initial : {static_cast<const Tensor*>(nullptr), &state}) {
      const auto fn = [&](Context& ctx, const std::vector<Var>& in) {
        return std::vector<Var>{causal_conv1d_silu(ctx, in[0], in[1], in[2], c.sequences, initial)};
      };
      CHECK_GRADIENTS(fn, {c.x.clone(), c.weight, c.bias});
      CHECK_GRADIENTS(fn, {c.x.clone(), c.weight, c.bias}, {.wants = {false, true, false}});
      CHECK_GRADIENTS(fn, {c.x.clone(), c.weight, c.bias}, {.wants = {true, false, false}});
    }
    const auto no_bias = [&](Context& ctx, const std::vector<Var>& in) {
      return std::vector<Var>{causal_conv1d_silu(ctx, in[0], in[1], Var(), c.sequences)};
    };
    CHECK_GRADIENTS(no_bias, {c.x.clone(), c.weight});
  }
}

TEST_CASE("causal_conv1d: gradients in f32 and bf16 against f64, across segments" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices("causal_conv1d"))
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(device);
      CAPTURE(dtype);
      const Case c = make_case({63, 2, 130, 0, 5}, 270, 4, dtype, device);
      const auto got = run(c), want = run(as_dtype(on(c, Device::cpu), DType::f64));
      const std::int64_t tokens = c.sequences.tokens();
      CHECK_CLOSE(got[0], want[0], sum_tol(dtype, 4, 4));
      // dy is drawn for each dtype and rounded to it, so gradients differ by the rounding of their terms.
      const double unit = dtype == DType::bf16 ? 0x1p-8 : 0x1p-24;
      // Terms of dx reach about 4, and each is a product of three rounded factors.
      const Tol rounded{8 * unit, 32 * unit};
      CHECK_CLOSE(got[1], want[1], rounded);
      const double sums = 8 * unit * std::sqrt(static_cast<double>(tokens));
      CHECK_CLOSE(got[2], want[2], (Tol{8 * unit, sums}));
      CHECK_CLOSE(got[3], want[3], (Tol{8 * unit, sums}));
      CHECK(got[2].dtype() == DType::f32);
    }
}

TEST_CASE("causal_conv1d: gradients as on the CPU, twice the same bits, any alignment, on cuda" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  // Sequences within a warp's rows, over several warps' rows, over several segments, and shorter than the
  // taps.
  const std::vector<std::vector<std::int64_t>> packings{
      {0, 3, 1, 0, 40, 2, 290, 31, 32, 33, 64}, {513}, std::vector<std::int64_t>(45, 1), {0, 0, 7}, {2, 2}};
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t taps : {1, 3, 4, 6})
      for (const auto& lengths : packings)
        for (const auto& [channels, start] : {std::pair<std::int64_t, std::int64_t>{136, 8}, {37, 3}}) {
          if (taps != 4 && channels != 37) continue;
          CAPTURE(dtype);
          CAPTURE(taps);
          CAPTURE(lengths.size());
          CAPTURE(channels);
          const Case c = make_case(lengths, channels, taps, dtype, Device::cuda, start);
          const Tensor state = random_tensor({std::ssize(lengths), taps - 1, channels}, DType::f32, 9),
                       there = state.to(Device::cuda);
          const auto got = run(c, &there), again = run(c, &there), copy = run(contiguous(c), &there),
                     want = run(on(c, Device::cpu), &state);
          const std::int64_t tokens = c.sequences.tokens();
          for (std::size_t i = 0; i < want.size(); ++i) {
            CAPTURE(i);
            // y, dx, dweight, dbias, final state. Terms reach about 8.
            const bool is_sum = i == 2 || i == 3;
            CHECK_CLOSE(got[i], want[i], sum_tol(is_sum ? DType::f32 : dtype, is_sum ? 8 * tokens : taps, 8));
            CHECK_BITS(again[i], got[i]);
            CHECK_BITS(copy[i], got[i]);
          }
          CHECK_BITS(got[4], want[4]);
        }
}

TEST_CASE("causal_conv1d: only some gradients, parameters that are no leaves" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("causal_conv1d"))
    for (const std::int64_t taps : {2, 4}) {
      CAPTURE(device);
      CAPTURE(taps);
      const Case c = make_case({40, 0, 3}, 9, taps, DType::f32, device);
      const auto want = run(c);
      for (int wanted = 1; wanted < 8; ++wanted) {
        CAPTURE(wanted);
        const auto node = [&](const Tensor& t, int which) {
          return wanted & which ? std::make_shared<GradNode>(t.shape(), t.dtype(), device, false) : nullptr;
        };
        const Var x(c.x, node(c.x, 1)), weight(c.weight, node(c.weight, 2)), bias(c.bias, node(c.bias, 4));
        Tape tape;
        Context ctx{.tape = &tape};
        const Var y = causal_conv1d_silu(ctx, x, weight, bias, c.sequences);
        tape.backward(y, random_tensor(y.shape(), DType::f32, 4).to(device));
        const std::array<const Var*, 3> all{&x, &weight, &bias};
        for (std::size_t i = 0; i < all.size(); ++i)
          if (all[i]->node()) CHECK_BITS(all[i]->node()->grad(), want[1 + i]);
      }
    }
}

TEST_CASE("causal_conv1d: a second backward adds to the gradients of the parameters" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices("causal_conv1d")) {
    CAPTURE(device);
    const Case c = make_case({9, 30}, 6, 4, DType::f32, device);
    const auto once = run(c);
    Context plain;
    const Var weight = Var::leaf(c.weight), bias = Var::leaf(c.bias);
    for (int i = 0; i < 2; ++i) {
      Tape tape;
      Context ctx{.tape = &tape};
      const Var y = causal_conv1d_silu(ctx, c.x, weight, bias, c.sequences);
      tape.backward(y, random_tensor(y.shape(), DType::f32, 4).to(device));
    }
    CHECK_BITS(weight.grad(), add(plain, once[2], once[2]).value());
    CHECK_BITS(bias.grad(), add(plain, once[3], once[3]).value());
  }
}

TEST_CASE("causal_conv1d: rows behind 2^31 elements, on cuda" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  for (const std::int64_t taps : {3, 4}) {
    const Case near = on(make_case({1, 2}, 16, taps, DType::bf16), Device::cuda);
    Case far = near;
    far.x = far_rows(near.x.to(Device::cpu), Device::cuda);
    const Tensor state = random_tensor({2, taps - 1, 16}, DType::f32, 9).to(Device::cuda);
    const auto got = run(far, &state), want = run(near, &state);
    for (std::size_t i = 0; i < want.size(); ++i) CHECK_BITS(got[i], want[i]);
  }
}

TEST_CASE("causal_conv1d: f32 parameters beside bf16 activations" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("causal_conv1d"))
    for (const auto& [channels, start, taps] :
         {std::array<std::int64_t, 3>{20, 3, 4}, {24, 8, 4}, {20, 3, 3}}) {
      CAPTURE(device);
      Case c = make_case({9, 4}, channels, taps, DType::bf16, device, start);
      c.weight = c.weight.to(DType::f32);
      c.bias = c.bias.to(DType::f32);
      const auto mixed = run(c), same = run(as_dtype(c, DType::bf16));
      for (std::size_t i = 0; i < mixed.size(); ++i) CHECK_BITS(mixed[i], same[i]);
    }
}

TEST_CASE("causal_conv1d: a strided gradient buffer" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("causal_conv1d"))
    for (const std::int64_t start : {3, 8}) {
      CAPTURE(device);
      const Case c = make_case({9, 4}, 8, 4, DType::f32, device, start);
      const auto alone = run(c);
      Tape tape;
      Context ctx;
      ctx.tape = &tape;
      auto parent = std::make_shared<GradNode>(Shape{13, 20}, DType::f32, device, false);
      auto window = std::make_shared<GradNode>(parent, c.x.shape(), start);
      const Var x(c.x, window);
      const Var y = causal_conv1d_silu(ctx, x, c.weight, c.bias, c.sequences);
      tape.backward(y, random_tensor(y.shape(), DType::f32, 4).to(device));
      CHECK(window->grad().row_stride() == 20);
      CHECK_BITS(window->grad(), alone[1]);
    }
}

TEST_CASE("causal_conv1d: packed equals separate sequences, bit for bit" * doctest::test_suite("cuda")) {
  const std::vector<std::int64_t> lengths{3, 70, 0, 1, 12};
  for (const Device device : test_devices("causal_conv1d"))
    for (const std::int64_t taps : {4, 5}) {
      CAPTURE(device);
      CAPTURE(taps);
      const Case c = make_case(lengths, 40, taps, DType::f32, device);
      Context ctx;
      Tensor states;
      const Var y = causal_conv1d_silu(ctx, c.x, c.weight, c.bias, c.sequences, nullptr, &states);
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        const auto index = static_cast<std::int64_t>(i);
        const Tensor part = c.x.narrow(0, c.sequences.begin(index), lengths[i]);
        Tensor state;
        const Var one = causal_conv1d_silu(ctx, part, c.weight, c.bias, Sequences::uniform(1, lengths[i]),
                                           nullptr, &state);
        CHECK_BITS(one.value(), y.value().narrow(0, c.sequences.begin(index), lengths[i]));
        CHECK_BITS(state, states.narrow(0, index, 1));
      }
    }
}

TEST_CASE("causal_conv1d: pieces with state hand-over equal the whole, bit for bit" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices("causal_conv1d"))
    for (const std::int64_t taps : {1, 2, 4, 7}) {
      CAPTURE(device);
      CAPTURE(taps);
      const std::int64_t length = 23;
      const Case c = make_case({length}, 12, taps, DType::f32, device);
      Context ctx;
      Tensor whole_state;
      const Var whole = causal_conv1d_silu(ctx, c.x, c.weight, c.bias, c.sequences, nullptr, &whole_state);
      for (const std::int64_t step : {1, 2, 5, 23}) {
        Tensor state = Tensor::zeros({1, taps - 1, 12}, DType::f32, device);
        for (std::int64_t t = 0; t < length; t += step) {
          const std::int64_t n = std::min(step, length - t);
          const Var piece = causal_conv1d_silu(ctx, c.x.narrow(0, t, n), c.weight, c.bias,
                                               Sequences::uniform(1, n), &state, &state);
          CHECK_BITS(piece.value(), whole.value().narrow(0, t, n));
        }
        CHECK_BITS(state, whole_state);
      }
    }
}

TEST_CASE("causal_conv1d: final state of a bf16 sequence, an empty one and one shorter than the taps" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices("causal_conv1d"))
    for (const auto& [channels, start] : {std::pair<std::int64_t, std::int64_t>{3, 3}, {8, 8}}) {
      CAPTURE(device);
      const Case c = make_case({6, 0, 2}, channels, 4, DType::bf16, device, start);
      const Tensor initial = random_tensor({3, 3, channels}, DType::f32, 5).to(device);
      Context ctx;
      Tensor state;
      causal_conv1d_silu(ctx, c.x, c.weight, c.bias, c.sequences, &initial, &state);
      CHECK(state.dtype() == DType::f32);
      CHECK_BITS(state.select(0), c.x.narrow(0, 3, 3).to(DType::f32));
      CHECK_BITS(state.select(1), initial.select(1));
      CHECK_BITS(state.select(2).narrow(0, 0, 1), initial.select(2).narrow(0, 2, 1));
      CHECK_BITS(state.select(2).narrow(0, 1, 2), c.x.narrow(0, 6, 2).to(DType::f32));
    }
}

TEST_CASE("causal_conv1d: the number of threads changes no bit") {
  const Case c = make_case({100, 3, 200}, 300, 4, DType::f32);
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const auto one = run(c);
  omp_set_num_threads(3);
  const auto three = run(c);
  omp_set_num_threads(threads);
  for (std::size_t i = 0; i < one.size(); ++i) CHECK_BITS(one[i], three[i]);
}

TEST_CASE("causal_conv1d: no tokens, no channels" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("causal_conv1d"))
    for (const std::int64_t taps : {3, 4}) {
      CAPTURE(device);
      CAPTURE(taps);
      Context ctx;
      const auto zeros = [&](const Shape& shape) { return Tensor::zeros(shape, DType::f32, device); };
      const Var y =
          causal_conv1d_silu(ctx, zeros({0, 3}), zeros({3, 1, taps}), Var(), Sequences::uniform(2, 0));
      CHECK(y.shape() == Shape{0, 3});
      const Var none =
          causal_conv1d_silu(ctx, zeros({4, 0}), zeros({0, 1, taps}), Var(), Sequences::uniform(2, 2));
      CHECK(none.shape() == Shape{4, 0});
      const auto grads = run(make_case({0, 0}, 3, taps, DType::f32, device));
      CHECK_BITS(grads[2], zeros({3, 1, taps}));
      CHECK_BITS(grads[3], zeros({3}));
      CHECK(run(make_case({2, 1}, 0, taps, DType::f32, device))[2].shape() == Shape{0, 1, taps});
    }
}

TEST_CASE("causal_conv1d: errors") {
  Context ctx;
  const Case c = make_case({4, 3}, 5, 4, DType::f32);
  const auto call = [&](const Var& x, const Var& weight, const Var& bias, const Sequences& sequences,
                        const Tensor* state = nullptr) {
    causal_conv1d_silu(ctx, x, weight, bias, sequences, state);
  };
  CHECK_NOTHROW(call(c.x, c.weight, c.bias, c.sequences));
  CHECK_THROWS_AS(call(random_tensor({7}, DType::f32, 1), c.weight, c.bias, c.sequences), Error);
  CHECK_THROWS_AS(call(Tensor::zeros({7, 5}, DType::i32, Device::cpu), c.weight, c.bias, c.sequences), Error);
  CHECK_THROWS_AS(call(c.x, random_tensor({5, 4}, DType::f32, 1), c.bias, c.sequences), Error);
  CHECK_THROWS_AS(call(c.x, random_tensor({4, 1, 4}, DType::f32, 1), c.bias, c.sequences), Error);
  CHECK_THROWS_AS(call(c.x, Tensor::zeros({5, 1, 0}, DType::f32, Device::cpu), c.bias, c.sequences), Error);
  CHECK_THROWS_AS(call(c.x, c.weight.to(DType::f64), c.bias, c.sequences), Error);
  CHECK_THROWS_AS(call(c.x, c.weight, random_tensor({4}, DType::f32, 1), c.sequences), Error);
  CHECK_THROWS_AS(call(c.x, c.weight, c.bias.to(DType::bf16), c.sequences), Error);
  CHECK_THROWS_AS(call(c.x, c.weight, c.bias, Sequences::uniform(1, 6)), Error);
  const Tensor small = Tensor::zeros({2, 2, 5}, DType::f32, Device::cpu),
               other = Tensor::zeros({2, 3, 5}, DType::f64, Device::cpu);
  CHECK_THROWS_AS(call(c.x, c.weight, c.bias, c.sequences, &small), Error);
  CHECK_THROWS_AS(call(c.x, c.weight, c.bias, c.sequences, &other), Error);
}
