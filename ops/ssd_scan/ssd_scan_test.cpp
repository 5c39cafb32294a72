#include <doctest/doctest.h>

#include <cmath>

#include "ops/ssd_scan/ssd_scan_cases.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("ssd_scan: both variants against the plain recurrence") {
  for (const char* variant : {"chunked", "recurrent"})
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      CAPTURE(variant);
      CAPTURE(dtype);
      const Case c = with_initial(make_case({23, 0, 1, 70}, small, dtype));
      const auto got = run(c, variant), want = reference(c);
      CHECK(relative_error(got[0], want[0]) < scan_tol(dtype, 70));
      CHECK(relative_error(got[1], want[1]) < scan_tol(accumulate_dtype(dtype), 70));
    }
}

TEST_CASE("ssd_scan: the variants are two computations, so they round differently") {
  const Case c = make_case({64, 30}, small, DType::f32);
  const auto chunked = run(c, "chunked"), recurrent = run(c, "recurrent");
  for (const std::size_t i : {0, 2}) {  // y and dx
    CAPTURE(names[i]);
    CHECK(relative_error(chunked[i], recurrent[i]) > 0);
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
          CHECK(relative_error(got[i], want[i]) < scan_tol(DType::f64, 150));
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
  CHECK(relative_error(got[0], reference(c)[0]) < scan_tol(DType::f64, 31));
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
        // States and the gradients of parameters stay in f32.
        const bool stored = i != 1 && i < 6;
        CHECK(relative_error(got[i], want[i]) < scan_tol(stored ? dtype : DType::f32, 100));
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

TEST_CASE("ssd_scan: slow steps stay accurate beside one that wipes the state") {
  SsdOptions o = small;
  o.chunk_size = 64;
  Case c = make_case({64}, o, DType::f32);
  c.in[4].fill(9);  // A about -8100
  c.in[6].fill(0);
  c.in[1] = Tensor::empty({64, 4}, DType::f32, Device::cpu);
  c.in[1].fill(-12);                 // dt A about -0.05
  c.in[1].narrow(0, 5, 1).fill(30);  // dt A about -240000
  const Tensor dy = random_tensor(c.in[0].shape(), DType::f32, 9);
  const auto got = run(c, "chunked", dy), want = run(as_dtype(c, DType::f64), "recurrent", dy.to(DType::f64));
  for (const std::size_t i : {0, 1, 2, 3, 4, 5}) {
    CAPTURE(names[i]);
    CHECK(relative_error(got[i], want[i]) < scan_tol(DType::f32, 64));
  }
}
