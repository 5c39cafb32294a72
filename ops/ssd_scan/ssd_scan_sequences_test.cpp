#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>

#include "ops/ssd_scan/ssd_scan_kernels.h"
#include "ops/ssd_scan/test_cases.h"
#include "tests/support/devices.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("ssd_scan: the same bits on the guard device") {
  for (const char* variant : {"chunked", "recurrent"})
    for_dtypes({Device::guard}, [&](Device device, DType dtype) {
      CAPTURE(variant);
      const Case c = with_initial(make_case({9, 0, 1, 4}, small, dtype));
      const Tensor dy = random_tensor(c.in[0].shape(), dtype, 9);
      Case there = c;
      for (Tensor& t : there.in) t = t.to(device);
      there.initial = c.initial.to(device);
      const auto got = run(there, variant, dy.to(device)), want = run(c, variant, dy);
      for (std::size_t i = 0; i < want.size(); ++i) {
        CAPTURE(names[i]);
        CHECK_BITS(got[i], want[i]);
      }
    });
}

TEST_CASE("ssd_scan: the same bits on every run on cuda, and the CPU's values" *
          doctest::test_suite("cuda")) {
  if (!has_cuda() || !runs_on_cuda("ssd_scan")) return;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::vector<std::int64_t> lengths{9, 0, 1, 70};
    const Case c = with_initial(make_case(lengths, small, dtype, Device::cuda));
    const auto got = run(c, "chunked"), again = run(c, "chunked"),
               want = run(on_device(c, Device::cpu), "chunked");
    for (std::size_t i = 0; i < got.size(); ++i) {
      CAPTURE(dtype);
      CAPTURE(names[i]);
      CHECK_BITS(got[i], again[i]);
      const bool stored = i != 1 && i < 6;
      CHECK(relative_error(got[i], want[i]) < scan_tol(stored ? dtype : DType::f32, 70));
    }
  }
}

TEST_CASE("ssd_scan: rows beyond 2^31 elements on cuda" * doctest::test_suite("cuda")) {
  if (!has_cuda() || !runs_on_cuda("ssd_scan")) return;
  const std::int64_t tokens = 6, apart = std::int64_t{1} << 29;
  const Case near = make_case({4, 2}, small, DType::bf16, Device::cuda);
  const Tensor dy = random_tensor(near.in[0].shape(), DType::bf16, 9).to(Device::cuda);
  const auto want = run(near, "chunked", dy);
  const Tensor wide = Tensor::empty({tokens, apart}, DType::bf16, Device::cuda);
  Case far = near;
  std::int64_t start = 0;
  const auto moved = [&](const Tensor& t) {
    const Tensor place = wide.narrow(-1, start, t.cols());
    place.copy_from(t);
    start += t.cols();
    return place;
  };
  for (std::size_t i = 0; i < 4; ++i) far.in[i] = moved(near.in[i]);
  const auto got = run(far, "chunked", moved(dy));
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(names[i]);
    CHECK_BITS(got[i], want[i]);
  }
}

TEST_CASE("ssd_scan: packed equals separate sequences, bit for bit" * doctest::test_suite("cuda")) {
  const std::vector<std::int64_t> lengths{23, 0, 70, 1};
  for (const Device device : test_devices("ssd_scan"))
    for_variants(device, [&](const char* variant) {
      CAPTURE(variant);
      SsdOptions o = small;
      o.chunk_size = 64;
      const Case c = with_initial(make_case(lengths, o, DType::f32, device));
      const Tensor dy = random_tensor(c.in[0].shape(), DType::f32, 9).to(device);
      const auto whole = run(c, variant, dy);
      for (std::size_t s = 0; s < lengths.size(); ++s) {
        const auto index = static_cast<std::int64_t>(s);
        const auto part = [&](const Tensor& t) { return t.narrow(0, c.sequences.begin(index), lengths[s]); };
        Case one = c;
        one.sequences = Sequences::uniform(1, lengths[s]);
        one.initial = c.initial.narrow(0, index, 1);
        for (std::size_t i = 0; i < 4; ++i) one.in[i] = part(c.in[i]);
        const auto alone = run(one, variant, part(dy));
        CHECK_BITS(alone[0], part(whole[0]));
        CHECK_BITS(alone[1], whole[1].narrow(0, index, 1));
        for (std::size_t i = 2; i < 6; ++i) CHECK_BITS(alone[i], part(whole[i]));
      }
    });
}

TEST_CASE("ssd_scan: spare rows and room for more sequences change no sequence" *
          doctest::test_suite("cuda")) {
  const std::vector<std::int64_t> lengths{23, 0, 70, 1};
  const auto check = [&](const SsdOptions& o, DType dtype, Device device, const char* variant,
                         std::int64_t spare = 17) {
    CAPTURE(variant);
    const Case roomy = [&] {
      Case c = make_case({23, 0, 70, 1, spare}, o, dtype, device);  // the last one is of the spare rows
      c.sequences = Sequences::of_lengths(lengths).with_capacity(94 + spare, 6);
      return with_initial(c);
    }();
    Case tight = roomy;
    tight.sequences = Sequences::of_lengths(lengths);
    const std::int64_t tokens = tight.sequences.tokens();
    const auto part = [&](const Tensor& t) { return t.narrow(0, 0, tokens); };
    tight.initial = roomy.initial.narrow(0, 0, 4);
    for (std::size_t i = 0; i < 4; ++i) tight.in[i] = part(roomy.in[i]);
    const Tensor dy = random_tensor(roomy.in[0].shape(), dtype, 9).to(device);
    dy.narrow(0, tokens, spare).zero();
    const auto got = run(roomy, variant, dy), want = run(tight, variant, part(dy));
    CHECK_BITS(part(got[0]), want[0]);
    CHECK_BITS(got[1].narrow(0, 0, 4), want[1]);
    for (std::size_t i = 2; i < 6; ++i) {
      CAPTURE(names[i]);
      CHECK_BITS(part(got[i]), want[i]);
    }
    for (std::size_t i = 6; i < got.size(); ++i) {
      CAPTURE(names[i]);
      CHECK(relative_error(got[i], want[i]) <= scan_tol(dtype, tokens));
    }
  };
  SsdOptions o = small;
  o.chunk_size = 16;
  for (const Device device : test_devices("ssd_scan"))
    for_variants(device, [&](const char* variant) { check(o, DType::f32, device, variant); });
  if (has_cuda() && runs_on_cuda("ssd_scan"))
    for (const std::int64_t spare : {std::int64_t{17}, ssd_segment_tokens + 50})
      check({.heads = 2, .head_dim = 64, .groups = 1, .state_size = 128}, DType::bf16, Device::cuda,
            "chunked", spare);
}

TEST_CASE("ssd_scan: on tensor cores, packed equals separate sequences, bit for bit" *
          doctest::test_suite("cuda")) {
  if (!has_cuda() || !runs_on_cuda("ssd_scan")) return;
  const SsdOptions o{.heads = 2, .head_dim = 64, .groups = 1, .state_size = 128};
  const auto check = [&](const std::vector<std::int64_t>& lengths, std::int64_t sequence, bool backward) {
    Case c = make_case(lengths, o, DType::bf16, Device::cuda);
    for (Tensor& t : c.in) t = t.clone();
    const std::int64_t begin = c.sequences.begin(sequence), length = c.sequences.length(sequence);
    const auto part = [&](const Tensor& t) { return t.narrow(0, begin, length); };
    Case one = c;
    one.sequences = Sequences::uniform(1, length);
    for (std::size_t i = 0; i < 4; ++i) one.in[i] = part(c.in[i]);
    if (backward) {
      const Tensor dy = random_tensor(c.in[0].shape(), DType::bf16, 9).to(Device::cuda);
      const auto whole = run(c, "chunked", dy), alone = run(one, "chunked", part(dy));
      CHECK_BITS(alone[0], part(whole[0]));
      CHECK_BITS(alone[1], whole[1].narrow(0, sequence, 1));
      for (std::size_t i = 2; i < 6; ++i) CHECK_BITS(alone[i], part(whole[i]));
    } else {
      Context ctx;
      const auto forward = [&](const Case& of) {
        return call(ctx, of, std::vector<Var>(of.in.begin(), of.in.end())).value();
      };
      CHECK_BITS(forward(one), part(forward(c)));
    }
  };
  check({140, 0, 70}, 0, true);
  // Of several segments.
  check({70, 2 * ssd_segment_tokens + 300, 0, 1}, 1, true);
  check({ssd_segment_tokens + 1, 70}, 1, true);
  // So many sequences that blocks have whole heads; those of one sequence have slices.
  std::vector<std::int64_t> many(140, 1);
  many.front() = 70;
  check(many, 0, false);
}

TEST_CASE("ssd_scan: pieces with state hand-over, and token by token, equal the whole" *
          doctest::test_suite("cuda")) {
  for_dtypes(test_devices("ssd_scan"), [](Device device, DType dtype) {
    if (dtype == DType::bf16) return;
    for_variants(device, [&](const char* variant) {
      CAPTURE(variant);
      const KernelChoice choice = choose(variant);
      Context ctx;
      ctx.kernels = &choice;
      const std::int64_t length = 40;
      const Case c = make_case({length}, small, dtype, device);
      const auto whole = run(c, variant);
      const double tolerance = scan_tol(dtype, length);
      for (const std::int64_t step : {1, 7, 20}) {
        Case piece = c;
        piece.initial = Tensor::zeros(whole[1].shape(), dtype, device);
        const Tensor y = Tensor::empty(whole[0].shape(), dtype, device);
        for (std::int64_t t = 0; t < length; t += step) {
          const std::int64_t n = std::min(step, length - t);
          piece.sequences = Sequences::uniform(1, n);
          for (std::size_t i = 0; i < 4; ++i) piece.in[i] = c.in[i].narrow(0, t, n);
          const std::vector<Var> in(piece.in.begin(), piece.in.end());
          y.narrow(0, t, n).copy_from(call(ctx, piece, in, &piece.initial).value());
        }
        CHECK(relative_error(y, whole[0]) < tolerance);
        CHECK(relative_error(piece.initial, whole[1]) < tolerance);
      }
    });
  });
}

TEST_CASE("ssd_scan: decays that underflow give exact zeros and no NaN" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices("ssd_scan"), [](Device device, DType dtype) {
    if (dtype == DType::bf16) return;
    for_variants(device, [&](const char* variant) {
      CAPTURE(variant);
      Case c = make_case({50}, small, dtype, device);
      c.in[4].fill(12);  // A about -160000
      c.in[5].fill(0);
      c.in[6].fill(25);
      const Tensor x = Tensor::zeros(c.in[0].shape(), dtype, device);
      x.narrow(0, 0, 1).fill(1);
      c.in[0] = x;
      const auto got = run(c, variant);
      CHECK_CLOSE(got[0].narrow(0, 1, 49), Tensor::zeros({49, 12}, dtype, Device::cpu), (Tol{0, 0}));
      CHECK(relative_error(got[0], reference(c)[0]) < scan_tol(dtype, 50));
      for (const Tensor& t : got)
        for (const double value : t.to_vector()) REQUIRE(std::isfinite(value));
    });
  });
}

TEST_CASE("ssd_scan: a NaN stays in its sequence" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("ssd_scan")) {
    Case c = make_case({20, 21}, small, DType::f32, device);
    const auto clean = run(c, "chunked");
    c.in[1] = c.in[1].clone();
    c.in[1].narrow(0, 3, 1).narrow(1, 1, 1).fill(std::nan(""));
    const auto got = run(c, "chunked");
    for (const std::size_t i : {0, 2, 3, 4, 5})
      CHECK_BITS(got[i].narrow(0, 20, 21), clean[i].narrow(0, 20, 21));
    CHECK(std::isnan(got[0].to_vector()[3 * 12 + 3]));
  }
}

TEST_CASE("ssd_scan: strided gradient buffers" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("ssd_scan")) {
    const Case c = make_case({30, 9}, small, DType::f32, device);
    const Tensor dy = random_tensor(c.in[0].shape(), DType::f32, 9).to(device);
    const auto alone = run(c, "chunked", dy);
    Tape tape;
    Context ctx;
    ctx.tape = &tape;
    auto parent = std::make_shared<GradNode>(Shape{39, 60}, DType::f32, device, false);
    std::vector<Var> in;
    std::int64_t start = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      in.emplace_back(c.in[i], std::make_shared<GradNode>(parent, c.in[i].shape(), start));
      start += c.in[i].cols() + 1;
    }
    for (std::size_t i = 4; i < 7; ++i)
      in.emplace_back(c.in[i], std::make_shared<GradNode>(c.in[i].shape(), DType::f32, device, false));
    tape.backward(call(ctx, c, in), dy);
    for (std::size_t i = 0; i < 7; ++i) {
      CAPTURE(i);
      if (i < 4) CHECK(in[i].node()->grad().row_stride() == 60);
      CHECK_BITS(in[i].node()->grad(), alone[i + 2]);
    }
  }
}

TEST_CASE("ssd_scan: the number of threads changes no bit") {
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

TEST_CASE("ssd_scan: no tokens" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("ssd_scan"))
    for_variants(device, [&](const char* variant) {
      const Case c = with_initial(make_case({0, 0}, small, DType::f32, device));
      const auto got = run(c, variant);
      CHECK(got[0].shape() == Shape{0, 12});
      CHECK_BITS(got[1], c.initial);
      CHECK_BITS(got[6], Tensor::zeros({4}, DType::f32, Device::cpu));
    });
}

TEST_CASE("ssd_scan: errors") {
  const Case good = make_case({4, 3}, small, DType::f32);
  const auto scan = [](const Case& c) {
    Context ctx;
    call(ctx, c, std::vector<Var>(c.in.begin(), c.in.end()));
  };
  CHECK_NOTHROW(scan(good));
  const auto with_input = [&](std::size_t i, const Tensor& t) {
    Case c = good;
    c.in[i] = t;
    return c;
  };
  const Shape shapes[] = {{7, 11}, {7, 5}, {7, 9}, {7, 11}, {5}, {3}, {1, 4}};
  for (std::size_t i = 0; i < 7; ++i) {
    CAPTURE(i);
    CHECK_THROWS_AS(scan(with_input(i, Tensor::zeros(shapes[i], DType::f32, Device::cpu))), Error);
    CHECK_THROWS_AS(scan(with_input(i, good.in[i].to(DType::f64))), Error);
  }
  CHECK_THROWS_AS(scan(with_input(0, random_tensor({12}, DType::f32, 1))), Error);
  CHECK_THROWS_AS(scan(with_input(0, Tensor::zeros({7, 12}, DType::i32, Device::cpu))), Error);
  const auto with_options = [&](auto change) {
    Case c = good;
    change(c.options);
    return c;
  };
  CHECK_THROWS_AS(scan(with_options([](SsdOptions& o) { o.heads = 0; })), Error);
  CHECK_THROWS_AS(scan(with_options([](SsdOptions& o) { o.groups = 3; })), Error);
  CHECK_THROWS_AS(scan(with_options([](SsdOptions& o) { o.chunk_size = 0; })), Error);
  CHECK_THROWS_AS(scan(with_options([](SsdOptions& o) { o.dt_max = -1; })), Error);
  CHECK_THROWS_AS(scan(with_options([](SsdOptions& o) { o.dt_min = std::nan(""); })), Error);
  Case c = good;
  c.sequences = Sequences::uniform(1, 6);
  CHECK_THROWS_AS(scan(c), Error);
  c = with_initial(good);
  CHECK_NOTHROW(scan(c));
  c.initial = c.initial.to(DType::f64);
  CHECK_THROWS_AS(scan(c), Error);
  c.initial = Tensor::zeros({1, 4, 3, 5}, DType::f32, Device::cpu);
  CHECK_THROWS_AS(scan(c), Error);
}
