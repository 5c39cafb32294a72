#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>
#include <memory>

#include "ops/gated_delta_rule/gated_delta_rule_kernels.h"
#include "ops/gated_delta_rule/test_cases.h"
#include "tests/support/devices.h"

using namespace nemocube;
using namespace nemocube::testing;
using namespace nemocube::testing::delta_rule;

TEST_CASE("gated_delta_rule: the same bits on the guard device") {
  for (const char* variant : {"chunked", "recurrent"})
    for_dtypes({Device::guard}, [&](Device device, DType dtype) {
      CAPTURE(variant);
      const Case c = with_initial(make_case({9, 0, 1, 4}, small, dtype));
      const Tensor d_o = random_tensor(c.in[2].shape(), dtype, 9);
      const auto got = run(on_device(c, device), variant, d_o.to(device)), want = run(c, variant, d_o);
      for (std::size_t i = 0; i < want.size(); ++i) {
        CAPTURE(names[i]);
        CHECK_BITS(got[i], want[i]);
      }
    });
}

TEST_CASE("gated_delta_rule: the same bits on every run on cuda, and the CPU's values" *
          doctest::test_suite("cuda")) {
  if (!has_cuda() || !runs_on_cuda("gated_delta_rule")) return;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    DeltaRuleOptions o = small;
    o.chunk_size = 16;
    const Case c = with_initial(make_case({9, 0, 1, 40}, o, dtype, Device::cuda));
    const auto got = run(c, "chunked"), again = run(c, "chunked"),
               want = run(on_device(c, Device::cpu), "chunked");
    for (std::size_t i = 0; i < got.size(); ++i) {
      CAPTURE(dtype);
      CAPTURE(names[i]);
      CHECK_BITS(got[i], again[i]);
      CHECK(result_error(i, got, want) < rule_tol(result_dtype(i, dtype), 40));
    }
  }
}

TEST_CASE("gated_delta_rule: packed equals separate sequences, bit for bit" * doctest::test_suite("cuda")) {
  const std::vector<std::int64_t> lengths{23, 0, 70, 1};
  for (const Device device : test_devices("gated_delta_rule"))
    for_variants(device, [&](const char* variant) {
      CAPTURE(variant);
      DeltaRuleOptions o{.key_heads = 1, .value_heads = 2, .key_dim = 6, .value_dim = 10, .chunk_size = 64};
      const Case c = with_initial(make_case(lengths, o, DType::f32, device));
      const Tensor d_o = random_tensor(c.in[2].shape(), DType::f32, 9).to(device);
      const auto whole = run(c, variant, d_o);
      for (std::size_t s = 0; s < lengths.size(); ++s) {
        const auto index = static_cast<std::int64_t>(s);
        const auto part = [&](const Tensor& t) { return t.narrow(0, c.sequences.begin(index), lengths[s]); };
        Case one = c;
        one.sequences = Sequences::uniform(1, lengths[s]);
        one.initial = c.initial.narrow(0, index, 1);
        for (std::size_t i = 0; i < 5; ++i) one.in[i] = part(c.in[i]);
        const auto alone = run(one, variant, part(d_o));
        CHECK_BITS(alone[0], part(whole[0]));
        CHECK_BITS(alone[1], whole[1].narrow(0, index, 1));
        for (std::size_t i = 2; i < 7; ++i) {
          CAPTURE(names[i]);
          CHECK_BITS(alone[i], part(whole[i]));
        }
      }
    });
}

TEST_CASE("gated_delta_rule: on tensor cores, packed equals separate sequences, bit for bit" *
          doctest::test_suite("cuda")) {
  if (!has_cuda() || !runs_on_cuda("gated_delta_rule")) return;
  const DeltaRuleOptions o{.key_heads = 1, .value_heads = 1, .key_dim = 128, .value_dim = 128};
  const Case c = with_initial(make_case({70, 0, 9}, o, DType::bf16, Device::cuda));
  const Tensor d_o = random_tensor(c.in[2].shape(), DType::bf16, 9).to(Device::cuda);
  const auto whole = run(c, "chunked", d_o);
  for (const std::int64_t index : {0, 2}) {
    const auto part = [&](const Tensor& t) {
      return t.narrow(0, c.sequences.begin(index), c.sequences.length(index));
    };
    Case one = c;
    one.sequences = Sequences::uniform(1, c.sequences.length(index));
    one.initial = c.initial.narrow(0, index, 1);
    for (std::size_t i = 0; i < 5; ++i) one.in[i] = part(c.in[i]);
    const auto alone = run(one, "chunked", part(d_o));
    CHECK_BITS(alone[0], part(whole[0]));
    CHECK_BITS(alone[1], whole[1].narrow(0, index, 1));
    for (std::size_t i = 2; i < 7; ++i) {
      CAPTURE(names[i]);
      CHECK_BITS(alone[i], part(whole[i]));
    }
  }
}

TEST_CASE("gated_delta_rule: spare rows and room for more sequences change no sequence" *
          doctest::test_suite("cuda")) {
  const std::vector<std::int64_t> lengths{13, 0, 30, 1};
  constexpr std::int64_t spare = 17;
  DeltaRuleOptions o = small;
  o.chunk_size = 16;
  for (const Device device : test_devices("gated_delta_rule"))
    for_variants(device, [&](const char* variant) {
      CAPTURE(variant);
      const Case roomy = [&] {
        Case c =
            make_case({13, 0, 30, 1, spare}, o, DType::f32, device);  // the last one is of the spare rows
        c.sequences = Sequences::of_lengths(lengths).with_capacity(44 + spare, 6);
        return with_initial(c);
      }();
      Case tight = roomy;
      tight.sequences = Sequences::of_lengths(lengths);
      const std::int64_t tokens = tight.sequences.tokens();
      const auto part = [&](const Tensor& t) { return t.narrow(0, 0, tokens); };
      tight.initial = roomy.initial.narrow(0, 0, 4);
      for (std::size_t i = 0; i < 5; ++i) tight.in[i] = part(roomy.in[i]);
      const Tensor d_o = random_tensor(roomy.in[2].shape(), DType::f32, 9).to(device);
      d_o.narrow(0, tokens, spare).zero();
      const auto got = run(roomy, variant, d_o), want = run(tight, variant, part(d_o));
      CHECK_BITS(part(got[0]), want[0]);
      CHECK_BITS(got[1].narrow(0, 0, 4), want[1]);
      for (std::size_t i = 2; i < 7; ++i) {
        CAPTURE(names[i]);
        CHECK_BITS(part(got[i]), want[i]);
      }
      for (std::size_t i = 7; i < got.size(); ++i) {
        CAPTURE(names[i]);
        CHECK(result_error(i, got, want) <= rule_tol(DType::f32, tokens));
      }
    });
}

TEST_CASE("gated_delta_rule: pieces with state hand-over, and token by token, equal the whole" *
          doctest::test_suite("cuda")) {
  for_dtypes(test_devices("gated_delta_rule"), [](Device device, DType dtype) {
    if (dtype == DType::bf16) return;
    for_variants(device, [&](const char* variant) {
      CAPTURE(variant);
      const KernelChoice choice = choose(variant);
      Context ctx;
      ctx.kernels = &choice;
      const std::int64_t length = 26;
      const Case c = make_case({length}, small, dtype, device);
      const auto whole = run_forward(c, variant);
      const double tolerance = rule_tol(dtype, length);
      for (const std::int64_t step : {1, 7, 13}) {
        Case piece = c;
        piece.initial = Tensor::zeros(whole[1].shape(), dtype, device);
        const Tensor o = Tensor::empty(whole[0].shape(), dtype, device);
        for (std::int64_t t = 0; t < length; t += step) {
          const std::int64_t n = std::min(step, length - t);
          piece.sequences = Sequences::uniform(1, n);
          for (std::size_t i = 0; i < 5; ++i) piece.in[i] = c.in[i].narrow(0, t, n);
          const std::vector<Var> in(piece.in.begin(), piece.in.end());
          o.narrow(0, t, n).copy_from(call(ctx, piece, in, &piece.initial).value());
        }
        CHECK(relative_error(o, whole[0]) < tolerance);
        CHECK(relative_error(piece.initial, whole[1]) < tolerance);
      }
    });
  });
}

TEST_CASE("gated_delta_rule: a NaN stays in its sequence" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("gated_delta_rule")) {
    Case c = make_case({9, 10}, small, DType::f32, device);
    const auto clean = run(c, "chunked");
    c.in[3] = c.in[3].clone();
    c.in[3].narrow(0, 3, 1).narrow(1, 1, 1).fill(std::nan(""));
    const auto got = run(c, "chunked");
    for (const std::size_t i : {0, 2, 3, 4, 5, 6}) {
      CAPTURE(names[i]);
      CHECK_BITS(got[i].narrow(0, 9, 10), clean[i].narrow(0, 9, 10));
    }
    CHECK(std::isnan(got[0].to_vector()[4 * 40 + 10]));
  }
}

TEST_CASE("gated_delta_rule: strided gradient buffers" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("gated_delta_rule")) {
    const Case c = make_case({12, 5}, small, DType::f32, device);
    const Tensor d_o = random_tensor(c.in[2].shape(), DType::f32, 9).to(device);
    const auto alone = run(c, "chunked", d_o);
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    auto parent = std::make_shared<GradNode>(Shape{17, 90}, DType::f32, device, false);
    std::vector<Var> in;
    std::int64_t start = 0;
    for (std::size_t i = 0; i < 5; ++i) {
      in.emplace_back(c.in[i], std::make_shared<GradNode>(parent, c.in[i].shape(), start));
      start += c.in[i].cols() + 1;
    }
    for (std::size_t i = 5; i < 7; ++i)
      in.emplace_back(c.in[i], std::make_shared<GradNode>(c.in[i].shape(), DType::f32, device, false));
    tape.backward(call(ctx, c, in), d_o);
    for (std::size_t i = 0; i < 7; ++i) {
      CAPTURE(i);
      if (i < 5) CHECK(in[i].node()->grad().row_stride() == 90);
      CHECK_BITS(in[i].node()->grad(), alone[i + 2]);
    }
  }
}

TEST_CASE("gated_delta_rule: the number of threads changes no bit") {
  for (const char* variant : {"chunked", "recurrent"}) {
    const Case c = with_initial(make_case({70, 3, 130}, small, DType::f32));
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    const auto one = run(c, variant);
    omp_set_num_threads(3);
    const auto three = run(c, variant);
    omp_set_num_threads(threads);
    for (std::size_t i = 0; i < one.size(); ++i) CHECK_BITS(one[i], three[i]);
  }
}

TEST_CASE("gated_delta_rule: no tokens" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("gated_delta_rule"))
    for_variants(device, [&](const char* variant) {
      const Case c = with_initial(make_case({0, 0}, small, DType::f32, device));
      const auto got = run(c, variant);
      CHECK(got[0].shape() == Shape{0, 40});
      CHECK_BITS(got[1], c.initial);
      CHECK_BITS(got[7], Tensor::zeros({4}, DType::f32, Device::cpu));
      Case zero = c;
      zero.initial = Tensor();
      CHECK_BITS(run(zero, variant)[1], Tensor::zeros(c.initial.shape(), DType::f32, Device::cpu));
    });
}

TEST_CASE("gated_delta_rule: errors") {
  const Case good = make_case({4, 3}, small, DType::f32);
  const auto apply = [](const Case& c) {
    Context ctx;
    call(ctx, c, std::vector<Var>(c.in.begin(), c.in.end()));
  };
  CHECK_NOTHROW(apply(good));
  const auto with_input = [&](std::size_t i, const Tensor& t) {
    Case c = good;
    c.in[i] = t;
    return c;
  };
  const Shape shapes[] = {{7, 11}, {6, 12}, {7, 41}, {7, 5}, {6, 4}, {5}, {1, 4}};
  for (std::size_t i = 0; i < 7; ++i) {
    CAPTURE(i);
    CHECK_THROWS_AS(apply(with_input(i, Tensor::zeros(shapes[i], DType::f32, Device::cpu))), Error);
    CHECK_THROWS_AS(apply(with_input(i, good.in[i].to(DType::f64))), Error);
  }
  CHECK_THROWS_AS(apply(with_input(2, random_tensor({40}, DType::f32, 1))), Error);
  CHECK_THROWS_AS(apply(with_input(2, Tensor::zeros({7, 40}, DType::i32, Device::cpu))), Error);
  const auto with_options = [&](auto change) {
    Case c = good;
    change(c.options);
    return c;
  };
  CHECK_THROWS_AS(apply(with_options([](DeltaRuleOptions& o) { o.key_heads = 0; })), Error);
  CHECK_THROWS_AS(apply(with_options([](DeltaRuleOptions& o) { o.key_heads = 3; })), Error);
  CHECK_THROWS_AS(apply(with_options([](DeltaRuleOptions& o) { o.value_dim = 0; })), Error);
  CHECK_THROWS_AS(apply(with_options([](DeltaRuleOptions& o) { o.chunk_size = 0; })), Error);
  Case c = good;
  c.sequences = Sequences::uniform(1, 6);
  CHECK_THROWS_AS(apply(c), Error);
  c = with_initial(good);
  CHECK_NOTHROW(apply(c));
  c.initial = c.initial.to(DType::f64);
  CHECK_THROWS_AS(apply(c), Error);
  c.initial = Tensor::zeros({2, 4, 10, 6}, DType::f32, Device::cpu);
  CHECK_THROWS_AS(apply(c), Error);
}
