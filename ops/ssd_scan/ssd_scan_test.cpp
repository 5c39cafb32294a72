#include "ops/ssd_scan/ssd_scan.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>

#include "core/kernels.h"
#include "ops/ssd_scan/ssd_scan_parts.h"
#include "ops/ssd_scan/ssd_scan_transpose.h"
#include "tests/support/compare.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

struct Case {
  SsdOptions options;
  Sequences sequences;
  std::vector<Tensor> in;  // x, dt_raw, B, C, A_log, D, dt_bias
  Tensor initial;          // may be undefined
};

/// x, B, C and dt_raw are views of wider rows.
Case make_case(const std::vector<std::int64_t>& lengths, const SsdOptions& o, DType dtype) {
  Case c{o, Sequences::of_lengths(lengths), {}, {}};
  const std::int64_t tokens = c.sequences.tokens(), shared = o.groups * o.state_size;
  const auto view = [&](std::int64_t width, std::uint64_t seed, double scale) {
    return random_tensor({tokens, width + 5}, dtype, seed, scale).narrow(-1, 2, width);
  };
  Tensor bias = random_tensor({o.heads}, dtype, 7, 1.5), log_rate = random_tensor({o.heads}, dtype, 5, 0.5);
  c.in = {view(o.heads * o.head_dim, 1, 1),
          view(o.heads, 2, 1),
          view(shared, 3, 1),
          view(shared, 4, 1),
          log_rate,
          random_tensor({o.heads}, dtype, 6),
          bias};
  return c;
}

Case with_initial(Case c) {
  const DType acc = accumulate_dtype(c.in[0].dtype());
  c.initial =
      random_tensor({c.sequences.count(), c.options.heads, c.options.head_dim, c.options.state_size}, acc, 8);
  return c;
}

Case as_dtype(Case c, DType dtype) {
  for (Tensor& t : c.in) t = t.to(dtype);
  if (c.initial) c.initial = c.initial.to(accumulate_dtype(dtype));
  return c;
}

Var call(Context& ctx, const Case& c, const std::vector<Var>& in, Tensor* final_state = nullptr) {
  return ssd_scan(ctx, {in[0], in[1], in[2], in[3], in[4], in[5], in[6]}, c.options, c.sequences,
                  c.initial ? &c.initial : nullptr, final_state);
}

KernelChoice choose(const char* variant) {
  KernelChoice choice;
  choice.by_op["ssd_scan"] = variant;
  check_kernel_choice(choice);
  return choice;
}

/// y, the final states, and the gradients of the seven inputs for dy (random without one).
std::vector<Tensor> run(const Case& c, const char* variant, Tensor dy = {}) {
  const KernelChoice choice = choose(variant);
  Tape tape;
  Context ctx;
  ctx.tape = &tape;
  ctx.kernels = &choice;
  std::vector<Var> in;
  for (const Tensor& t : c.in) in.push_back(Var::leaf(t));
  Tensor state;
  const Var y = call(ctx, c, in, &state);
  if (!dy) dy = random_tensor(y.shape(), c.in[0].dtype(), 9);
  tape.backward(y, dy);
  std::vector<Tensor> result{y.value(), state};
  for (const Var& v : in) result.push_back(v.grad());
  return result;
}

const char* const names[] = {"y", "state", "dx", "ddt_raw", "dB", "dC", "dA_log", "dD", "ddt_bias"};

/// The recurrence of the header in plain f64 loops: y and the final states.
std::vector<Tensor> reference(const Case& c) {
  const SsdOptions& o = c.options;
  std::vector<std::vector<double>> v;
  for (const Tensor& t : c.in) v.push_back(t.to_vector());
  Tensor y = Tensor::empty({c.sequences.tokens(), o.heads * o.head_dim}, DType::f64);
  Tensor states = Tensor::zeros({c.sequences.count(), o.heads, o.head_dim, o.state_size}, DType::f64);
  if (c.initial) states.copy_from(c.initial);
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  for (std::int64_t i = 0; i < c.sequences.count(); ++i)
    for (std::int64_t t = c.sequences.begin(i); t < c.sequences.end(i); ++t)
      for (std::int64_t h = 0; h < o.heads; ++h) {
        const std::int64_t shared = (t * o.groups + h / (o.heads / o.groups)) * o.state_size;
        const double raw = v[1][at(t * o.heads + h)] + v[6][at(h)];
        const double soft = raw > 20 ? raw : std::log1p(std::exp(raw));
        const double dt = std::min(std::max(soft, o.dt_min), o.dt_max);
        const double decay = std::exp(-dt * std::exp(v[4][at(h)]));
        for (std::int64_t p = 0; p < o.head_dim; ++p) {
          double* s = states.row<double>((i * o.heads + h) * o.head_dim + p);
          const double x = v[0][at((t * o.heads + h) * o.head_dim + p)];
          double sum = v[5][at(h)] * x;
          for (std::int64_t n = 0; n < o.state_size; ++n) {
            s[n] = decay * s[n] + dt * x * v[2][at(shared + n)];
            sum += s[n] * v[3][at(shared + n)];
          }
          y.row<double>(t)[h * o.head_dim + p] = sum;
        }
      }
  return {y, states};
}

const SsdOptions small{.heads = 4, .head_dim = 3, .groups = 2, .state_size = 5, .chunk_size = 4};

}  // namespace

TEST_CASE("ssd_scan: parts") {
  double worst = 0;
  for (float v = -87; v < 90; v += 0.0137f) {
    const double want = v > 20 ? v : std::log1p(std::exp(static_cast<double>(v)));
    worst = std::max(worst, std::abs(cpu::ssd::softplus_of(v) - want) / want);
  }
  CHECK(worst < 3e-7);
  CHECK(std::isnan(cpu::ssd::softplus_of(std::nanf(""))));
  CHECK(cpu::ssd::softplus_of(-200.0f) == 0);
  for (const std::int64_t rows : {1, 8, 13, 40})
    for (const std::int64_t cols : {1, 7, 16, 19}) {
      CAPTURE(rows);
      CAPTURE(cols);
      const Tensor from = random_tensor({rows, cols}, DType::f32, 1),
                   to = Tensor::zeros({cols, rows + 3}, DType::f32);
      cpu::ssd::transpose(to.data<float>(), rows + 3, from.data<float>(), cols, rows, cols);
      bool same = true;
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < cols; ++c) same = same && to.row<float>(c)[r] == from.row<float>(r)[c];
      CHECK(same);
      CHECK(to.row<float>(cols - 1)[rows] == 0);
    }
}

TEST_CASE("ssd_scan: both variants against the plain recurrence") {
  for (const char* variant : {"chunked", "recurrent"})
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      CAPTURE(variant);
      CAPTURE(dtype);
      const Case c = with_initial(make_case({23, 0, 1, 70}, small, dtype));
      const auto got = run(c, variant), want = reference(c);
      // y of bf16 is rounded once; everything else is f32 arithmetic.
      const double tolerance = dtype == DType::f64 ? 1e-13 : dtype == DType::f32 ? 2e-6 : 3e-3;
      CHECK(relative_error(got[0], want[0]) < tolerance);
      CHECK(relative_error(got[1], want[1]) < (dtype == DType::f64 ? 1e-13 : 2e-6));
    }
}

TEST_CASE("ssd_scan: chunked against recurrent in f64, any chunk length, forward and all gradients") {
  const SsdOptions shapes[] = {small,
                               {.heads = 2, .head_dim = 16, .groups = 1, .state_size = 32},
                               {.heads = 3, .head_dim = 1, .groups = 3, .state_size = 1}};
  for (const SsdOptions& shape : shapes)
    for (const bool initial : {false, true}) {
      Case c = make_case({23, 0, 1, 150, 64}, shape, DType::f64);
      if (initial) c = with_initial(c);
      const auto want = run(c, "recurrent");
      for (const std::int64_t chunk : {1, 4, 7, 23, 33, 64, 1000}) {
        c.options.chunk_size = chunk;
        const auto got = run(c, "chunked");
        for (std::size_t i = 0; i < got.size(); ++i) {
          CAPTURE(shape.heads);
          CAPTURE(chunk);
          CAPTURE(names[i]);
          CHECK(relative_error(got[i], want[i]) < 1e-10);
        }
      }
    }
}

TEST_CASE("ssd_scan: against finite differences") {
  for (const char* variant : {"chunked", "recurrent"})
    for (const bool initial : {false, true}) {
      CAPTURE(variant);
      CAPTURE(initial);
      const KernelChoice choice = choose(variant);
      SsdOptions o{.heads = 4, .head_dim = 2, .groups = 2, .state_size = 3, .chunk_size = 4};
      if (initial)
        o = {.heads = 4,
             .head_dim = 2,
             .groups = 2,
             .state_size = 3,
             .chunk_size = 4,
             .dt_min = 0.4,
             .dt_max = 1.1};
      Case c = make_case({6, 0, 1, 9}, o, DType::f64);
      if (initial) c = with_initial(c);
      for (Tensor& t : c.in) t = t.clone();
      const auto fn = [&](Context& ctx, const std::vector<Var>& in) {
        Context with = ctx;
        with.kernels = &choice;
        return std::vector<Var>{call(with, c, in)};
      };
      CHECK_GRADIENTS(fn, c.in);
      for (std::size_t only = 0; only < 7; ++only) {
        std::vector<bool> wants(7, false);
        wants[only] = true;
        CHECK_GRADIENTS(fn, c.in, {.wants = wants});
      }
    }
}

TEST_CASE("ssd_scan: time step limits") {
  SsdOptions o = small;
  o.dt_min = 0.3;
  o.dt_max = 0.9;
  const Case c = make_case({31}, o, DType::f64);
  const auto got = run(c, "chunked");
  CHECK(relative_error(got[0], reference(c)[0]) < 1e-13);
  std::int64_t clipped = 0, passed = 0;
  for (const double g : got[3].to_vector()) ++(g == 0 ? clipped : passed);
  CHECK(clipped > 10);
  CHECK(passed > 10);
}

TEST_CASE("ssd_scan: gradients in f32 and bf16 against f64") {
  const SsdOptions o{.heads = 4, .head_dim = 16, .groups = 2, .state_size = 16};
  for (const char* variant : {"chunked", "recurrent"})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Case c = with_initial(make_case({100, 37}, o, dtype));
      const Tensor dy = random_tensor(c.in[0].shape(), dtype, 9);
      const auto got = run(c, variant, dy),
                 want = run(as_dtype(c, DType::f64), "recurrent", dy.to(DType::f64));
      for (std::size_t i = 0; i < got.size(); ++i) {
        CAPTURE(variant);
        CAPTURE(dtype);
        CAPTURE(names[i]);
        // Arithmetic is f32 in both; bf16 adds one rounding (half of 2^-8 at most) to what is stored in it.
        const bool stored = dtype == DType::bf16 && i != 1 && i < 6;
        CHECK(relative_error(got[i], want[i]) < (stored ? 3e-3 : 1e-5));
      }
    }
}

TEST_CASE("ssd_scan: f32 parameters beside bf16 activations") {
  Case c = make_case({40, 3}, small, DType::bf16);
  const auto plain = run(c, "chunked");
  for (std::size_t i = 4; i < 7; ++i) c.in[i] = c.in[i].to(DType::f32);
  const auto mixed = run(c, "chunked");
  for (std::size_t i = 0; i < plain.size(); ++i) CHECK_BITS(mixed[i], plain[i]);
}

TEST_CASE("ssd_scan: packed equals separate sequences, bit for bit") {
  const std::vector<std::int64_t> lengths{23, 0, 70, 1};
  for (const char* variant : {"chunked", "recurrent"}) {
    CAPTURE(variant);
    SsdOptions o = small;
    o.chunk_size = 64;
    const Case c = with_initial(make_case(lengths, o, DType::f32));
    const Tensor dy = random_tensor(c.in[0].shape(), DType::f32, 9);
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
  }
}

TEST_CASE("ssd_scan: pieces with state hand-over, and token by token, equal the whole") {
  for (const char* variant : {"chunked", "recurrent"})
    for (const DType dtype : {DType::f64, DType::f32}) {
      CAPTURE(variant);
      CAPTURE(dtype);
      const KernelChoice choice = choose(variant);
      Context ctx;
      ctx.kernels = &choice;
      const std::int64_t length = 40;
      const Case c = make_case({length}, small, dtype);
      const auto whole = run(c, variant);
      const double tolerance = dtype == DType::f64 ? 1e-13 : 2e-6;
      for (const std::int64_t step : {1, 7, 20}) {
        Case piece = c;
        piece.initial = Tensor::zeros(whole[1].shape(), dtype);
        const Tensor y = Tensor::empty(whole[0].shape(), dtype);
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
    }
}

TEST_CASE("ssd_scan: decays that underflow give exact zeros and no NaN") {
  for (const char* variant : {"chunked", "recurrent"})
    for (const DType dtype : {DType::f32, DType::f64}) {
      CAPTURE(variant);
      CAPTURE(dtype);
      Case c = make_case({50}, small, dtype);
      c.in[4].fill(12);  // A about -160000
      c.in[5].fill(0);
      c.in[6].fill(25);
      const Tensor x = Tensor::zeros(c.in[0].shape(), dtype);
      x.narrow(0, 0, 1).fill(1);
      c.in[0] = x;
      const auto got = run(c, variant);
      CHECK_CLOSE(got[0].narrow(0, 1, 49), Tensor::zeros({49, 12}, dtype), (Tol{0, 0}));
      CHECK(relative_error(got[0], reference(c)[0]) < 1e-6);
      for (const Tensor& t : got)
        for (const double value : t.to_vector()) REQUIRE(std::isfinite(value));
    }
}

TEST_CASE("ssd_scan: slow steps stay accurate beside one that wipes the state") {
  SsdOptions o = small;
  o.chunk_size = 64;
  Case c = make_case({64}, o, DType::f32);
  c.in[4].fill(9);  // A about -8100
  c.in[6].fill(0);
  c.in[1] = Tensor::empty({64, 4}, DType::f32);
  c.in[1].fill(-12);                 // dt A about -0.05
  c.in[1].narrow(0, 5, 1).fill(30);  // dt A about -240000
  const Tensor dy = random_tensor(c.in[0].shape(), DType::f32, 9);
  const auto got = run(c, "chunked", dy), want = run(as_dtype(c, DType::f64), "recurrent", dy.to(DType::f64));
  for (const std::size_t i : {0, 1, 2, 3, 4, 5}) {
    CAPTURE(names[i]);
    CHECK(relative_error(got[i], want[i]) < 1e-5);
  }
}

TEST_CASE("ssd_scan: a NaN stays in its sequence") {
  Case c = make_case({20, 21}, small, DType::f32);
  const auto clean = run(c, "chunked");
  c.in[1] = c.in[1].clone();
  c.in[1].row<float>(3)[1] = std::nanf("");
  const auto got = run(c, "chunked");
  for (const std::size_t i : {0, 2, 3, 4, 5})
    CHECK_BITS(got[i].narrow(0, 20, 21), clean[i].narrow(0, 20, 21));
  CHECK(std::isnan(got[0].row<float>(3)[3]));
}

TEST_CASE("ssd_scan: strided gradient buffers") {
  const Case c = make_case({30, 9}, small, DType::f32);
  const Tensor dy = random_tensor(c.in[0].shape(), DType::f32, 9);
  const auto alone = run(c, "chunked", dy);
  Tape tape;
  Context ctx;
  ctx.tape = &tape;
  auto parent = std::make_shared<GradNode>(Shape{39, 60}, DType::f32, false);
  std::vector<Var> in;
  std::int64_t start = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    in.emplace_back(c.in[i], std::make_shared<GradNode>(parent, c.in[i].shape(), start));
    start += c.in[i].cols() + 1;
  }
  for (std::size_t i = 4; i < 7; ++i)
    in.emplace_back(c.in[i], std::make_shared<GradNode>(c.in[i].shape(), DType::f32, false));
  tape.backward(call(ctx, c, in), dy);
  for (std::size_t i = 0; i < 7; ++i) {
    CAPTURE(i);
    if (i < 4) CHECK(in[i].node()->grad().row_stride() == 60);
    CHECK_BITS(in[i].node()->grad(), alone[i + 2]);
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

TEST_CASE("ssd_scan: no tokens") {
  for (const char* variant : {"chunked", "recurrent"}) {
    const Case c = with_initial(make_case({0, 0}, small, DType::f32));
    const auto got = run(c, variant);
    CHECK(got[0].shape() == Shape{0, 12});
    CHECK_BITS(got[1], c.initial);
    CHECK_BITS(got[6], Tensor::zeros({4}, DType::f32));
  }
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
    CHECK_THROWS_AS(scan(with_input(i, Tensor::zeros(shapes[i], DType::f32))), Error);
    CHECK_THROWS_AS(scan(with_input(i, good.in[i].to(DType::f64))), Error);
  }
  CHECK_THROWS_AS(scan(with_input(0, random_tensor({12}, DType::f32, 1))), Error);
  CHECK_THROWS_AS(scan(with_input(0, Tensor::zeros({7, 12}, DType::i32))), Error);
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
  c.initial = Tensor::zeros({1, 4, 3, 5}, DType::f32);
  CHECK_THROWS_AS(scan(c), Error);
}
