#include "ops/causal_conv1d/causal_conv1d.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/devices.h"
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

Case make_case(const std::vector<std::int64_t>& lengths, std::int64_t channels, std::int64_t taps,
               DType dtype) {
  Case c;
  c.sequences = Sequences::of_lengths(lengths);
  const std::int64_t tokens = c.sequences.tokens();
  c.x = random_tensor({tokens, channels + 5}, dtype, 1).narrow(-1, 3, channels);
  c.weight = random_tensor({channels, 1, taps}, dtype, 2, 0.7);
  c.bias = random_tensor({channels}, dtype, 3, 0.5);
  return c;
}

/// y, and the gradients of x, weight and bias for a random dy.
std::vector<Tensor> run(const Case& c, const Tensor* state = nullptr) {
  Tape tape;
  Context ctx;
  ctx.tape = &tape;
  const Var x = Var::leaf(c.x), weight = Var::leaf(c.weight), bias = Var::leaf(c.bias);
  const Var y = causal_conv1d_silu(ctx, x, weight, bias, c.sequences, state);
  tape.backward(y, random_tensor(y.shape(), c.x.dtype(), 4));
  return {y.value(), x.grad(), weight.grad(), bias.grad()};
}

Case as_dtype(const Case& c, DType dtype) {
  return {c.x.to(dtype), c.weight.to(dtype), c.bias.to(dtype), c.sequences};
}

}  // namespace

TEST_CASE("causal_conv1d_silu: the same bits on the guard device") {
  for_dtypes({Device::guard}, [](Device device, DType dtype) {
    const Case c = make_case({70, 0, 1, 5}, 9, 4, dtype);
    const Tensor state = random_tensor({4, 3, 9}, accumulate_dtype(dtype), 4),
                 dy = random_tensor({76, 9}, dtype, 5);
    const auto on = [&](Device at) {
      const Var x = Var::leaf(c.x.to(at)), weight = Var::leaf(c.weight.to(at)),
                bias = Var::leaf(c.bias.to(at));
      const Tensor start = state.to(at);
      Tensor end;
      Tape tape;
      Context ctx{.tape = &tape};
      const Var y = causal_conv1d_silu(ctx, x, weight, bias, c.sequences, &start, &end);
      tape.backward(y, dy.to(at));
      return std::vector{y.value(), end, x.grad(), weight.grad(), bias.grad()};
    };
    const auto got = on(device), want = on(Device::cpu);
    for (std::size_t i = 0; i < want.size(); ++i) CHECK_BITS(got[i], want[i]);
  });
}

TEST_CASE("causal_conv1d: against the formula, any taps and lengths") {
  for (const std::int64_t taps : {1, 2, 3, 4, 5, 9})
    for (const std::int64_t channels : {1, 7, 300})
      for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
        CAPTURE(taps);
        CAPTURE(channels);
        CAPTURE(dtype);
        const Case c = make_case({5, 0, 1, 70, 3}, channels, taps, dtype);
        Context ctx;
        const Var y = causal_conv1d_silu(ctx, c.x, c.weight, c.bias, c.sequences);
        CHECK_CLOSE(y.value(), reference(c.x, c.weight, c.bias, c.sequences), sum_tol(dtype, taps, 4));
        const Var without = causal_conv1d_silu(ctx, c.x, c.weight, Var(), c.sequences);
        CHECK_CLOSE(without.value(), reference(c.x, c.weight, Tensor(), c.sequences),
                    sum_tol(dtype, taps, 4));
      }
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

TEST_CASE("causal_conv1d: gradients in f32 and bf16 against f64, across segments") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    CAPTURE(dtype);
    const Case c = make_case({63, 2, 130, 0, 5}, 270, 4, dtype);
    const auto got = run(c), want = run(as_dtype(c, DType::f64));
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

TEST_CASE("causal_conv1d: f32 parameters beside bf16 activations") {
  Case c = make_case({9, 4}, 20, 4, DType::bf16);
  c.weight = c.weight.to(DType::f32);
  c.bias = c.bias.to(DType::f32);
  const auto mixed = run(c), plain = run(as_dtype(c, DType::bf16));
  for (std::size_t i = 0; i < mixed.size(); ++i) CHECK_BITS(mixed[i], plain[i]);
}

TEST_CASE("causal_conv1d: a strided gradient buffer") {
  const Case c = make_case({9, 4}, 6, 4, DType::f32);
  const auto alone = run(c);
  Tape tape;
  Context ctx;
  ctx.tape = &tape;
  auto parent = std::make_shared<GradNode>(Shape{13, 11}, DType::f32, Device::cpu, false);
  auto window = std::make_shared<GradNode>(parent, c.x.shape(), 3);
  const Var x(c.x, window);
  const Var y = causal_conv1d_silu(ctx, x, c.weight, c.bias, c.sequences);
  tape.backward(y, random_tensor(y.shape(), DType::f32, 4));
  CHECK(window->grad().row_stride() == 11);
  CHECK_BITS(window->grad(), alone[1]);
}

TEST_CASE("causal_conv1d: packed equals separate sequences, bit for bit") {
  const std::vector<std::int64_t> lengths{3, 70, 0, 1, 12};
  const Case c = make_case(lengths, 40, 4, DType::f32);
  Context ctx;
  Tensor states;
  const Var y = causal_conv1d_silu(ctx, c.x, c.weight, c.bias, c.sequences, nullptr, &states);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    const Tensor part = c.x.narrow(0, c.sequences.begin(index), lengths[i]);
    Tensor state;
    const Var one =
        causal_conv1d_silu(ctx, part, c.weight, c.bias, Sequences::uniform(1, lengths[i]), nullptr, &state);
    CHECK_BITS(one.value(), y.value().narrow(0, c.sequences.begin(index), lengths[i]));
    CHECK_BITS(state, states.narrow(0, index, 1));
  }
}

TEST_CASE("causal_conv1d: pieces with state hand-over equal the whole, bit for bit") {
  for (const std::int64_t taps : {1, 2, 4, 7}) {
    CAPTURE(taps);
    const std::int64_t length = 23;
    const Case c = make_case({length}, 12, taps, DType::f32);
    Context ctx;
    Tensor whole_state;
    const Var whole = causal_conv1d_silu(ctx, c.x, c.weight, c.bias, c.sequences, nullptr, &whole_state);
    for (const std::int64_t step : {1, 2, 5, 23}) {
      Tensor state = Tensor::zeros({1, taps - 1, 12}, DType::f32, Device::cpu);
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

TEST_CASE("causal_conv1d: final state of a bf16 sequence, an empty one and one shorter than the taps") {
  const Case c = make_case({6, 0, 2}, 3, 4, DType::bf16);
  const Tensor initial = random_tensor({3, 3, 3}, DType::f32, 5);
  Context ctx;
  Tensor state;
  causal_conv1d_silu(ctx, c.x, c.weight, c.bias, c.sequences, &initial, &state);
  CHECK(state.dtype() == DType::f32);
  CHECK_BITS(state.select(0), c.x.narrow(0, 3, 3).to(DType::f32));
  CHECK_BITS(state.select(1), initial.select(1));
  CHECK_BITS(state.select(2).narrow(0, 0, 1), initial.select(2).narrow(0, 2, 1));
  CHECK_BITS(state.select(2).narrow(0, 1, 2), c.x.narrow(0, 6, 2).to(DType::f32));
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

TEST_CASE("causal_conv1d: no tokens, no channels") {
  Context ctx;
  const Var y = causal_conv1d_silu(ctx, Tensor::empty({0, 3}, DType::f32, Device::cpu),
                                   random_tensor({3, 1, 4}, DType::f32, 1), Var(), Sequences::uniform(2, 0));
  CHECK(y.shape() == Shape{0, 3});
  const Var none =
      causal_conv1d_silu(ctx, Tensor::empty({4, 0}, DType::f32, Device::cpu),
                         Tensor::empty({0, 1, 4}, DType::f32, Device::cpu), Var(), Sequences::uniform(2, 2));
  CHECK(none.shape() == Shape{4, 0});
  const auto grads = run(make_case({0, 0}, 3, 4, DType::f32));
  CHECK_BITS(grads[2], Tensor::zeros({3, 1, 4}, DType::f32, Device::cpu));
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
