#include <doctest/doctest.h>

#include <cmath>

#include "core/cuda/runtime.h"
#include "ops/ssd_scan/ssd_scan_kernels.h"
#include "ops/ssd_scan/test_cases.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;

TEST_CASE("ssd_scan: every variant against the plain recurrence" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices("ssd_scan"), [](Device device, DType dtype) {
    for_variants(device, [&](const char* variant) {
      CAPTURE(variant);
      const Case c = with_initial(make_case({23, 0, 1, 70}, small, dtype, device));
      const auto got = run(c, variant), want = reference(c);
      CHECK(relative_error(got[0], want[0]) < scan_tol(dtype, 70));
      CHECK(relative_error(got[1], want[1]) < scan_tol(accumulate_dtype(dtype), 70));
    });
  });
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

TEST_CASE("ssd_scan: time step limits" * doctest::test_suite("cuda")) {
  SsdOptions o = small;
  o.dt_min = 0.3;
  o.dt_max = 0.9;
  for_dtypes(test_devices("ssd_scan"), [&](Device device, DType dtype) {
    if (dtype == DType::bf16) return;
    const Case c = make_case({31}, o, dtype, device);
    const auto got = run(c, "chunked");
    CHECK(relative_error(got[0], reference(c)[0]) < scan_tol(dtype, 31));
    std::int64_t clipped = 0, passed = 0;
    for (const double g : got[3].to_vector()) ++(g == 0 ? clipped : passed);
    CHECK(clipped > 10);
    CHECK(passed > 10);
    const auto want = run(as_dtype(on_device(c, Device::cpu), DType::f64), "recurrent");
    for (std::size_t i = 0; i < got.size(); ++i) {
      CAPTURE(names[i]);
      CHECK(relative_error(got[i], want[i]) < scan_tol(dtype, 31));
    }
  });
}

TEST_CASE("ssd_scan: gradients in f32 and bf16 against f64" * doctest::test_suite("cuda")) {
  const auto check = [](const Case& c, std::int64_t longest) {
    const DType dtype = c.in[0].dtype();
    const Tensor dy = random_tensor(c.in[0].shape(), dtype, 9);
    const Case exact = as_dtype(on_device(c, Device::cpu), DType::f64);
    const auto want = run(exact, "recurrent", dy.to(DType::f64));
    for_variants(c.in[0].device(), [&](const char* variant) {
      const auto got = run(c, variant, dy.to(c.in[0].device()));
      for (std::size_t i = 0; i < got.size(); ++i) {
        CAPTURE(variant);
        CAPTURE(names[i]);
        // States and the gradients of parameters stay in f32.
        const bool stored = i != 1 && i < 6;
        CHECK(relative_error(got[i], want[i]) < scan_tol(stored ? dtype : DType::f32, longest));
      }
    });
  };
  for_dtypes(test_devices("ssd_scan"), [&](Device device, DType dtype) {
    if (dtype == DType::f64) return;
    const SsdOptions o{.heads = 4, .head_dim = 16, .groups = 2, .state_size = 16};
    check(with_initial(make_case({100, 37}, o, dtype, device)), 100);
    // Heads and states of more than one tile of 64 and of one element; one group.
    check(make_case({130}, {.heads = 2, .head_dim = 70, .groups = 1, .state_size = 66}, dtype, device), 130);
    check(make_case({5, 66}, {.heads = 3, .head_dim = 1, .groups = 3, .state_size = 1}, dtype, device), 66);
  });
}

namespace {

/// A scan of bf16 on tensor cores, twice, against f64.
void check_tensor_cores(const std::vector<std::int64_t>& lengths, const SsdOptions& o) {
  REQUIRE(ssd_on_tensor_cores(Device::cuda, DType::bf16, o));
  for (const bool slow : {false, true}) {  // slow: small time steps, states that last
    Case c = make_case(lengths, o, DType::bf16, Device::cuda);
    if (slow) {
      // Rows that 16-byte accesses can read, and no initial state.
      for (Tensor& t : c.in) t = t.clone();
      c.in[6].fill(-4);
    } else {
      c = with_initial(c);
    }
    const Tensor dy = random_tensor(c.in[0].shape(), DType::bf16, 9);
    const auto got = run(c, "chunked", dy.to(Device::cuda)), again = run(c, "chunked", dy.to(Device::cuda));
    const auto want = run(as_dtype(on_device(c, Device::cpu), DType::f64), "recurrent", dy.to(DType::f64));
    for (std::size_t i = 0; i < got.size(); ++i) {
      CAPTURE(o.head_dim);
      CAPTURE(o.state_size);
      CAPTURE(slow);
      CAPTURE(names[i]);
      CHECK_BITS(got[i], again[i]);
      // Operands of second products are rounded to bf16, so this holds for the results that are f32 too.
      CHECK(relative_error(got[i], want[i]) < scan_tol(DType::bf16, 200));
    }
  }
}

}  // namespace

TEST_CASE("ssd_scan: on tensor cores, against f64" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const SsdOptions shapes[] = {{.heads = 2, .head_dim = 64, .groups = 1, .state_size = 128},
                               {.heads = 3, .head_dim = 80, .groups = 3, .state_size = 128},
                               {.heads = 2, .head_dim = 64, .groups = 2, .state_size = 256},
                               {.heads = 2, .head_dim = 80, .groups = 1, .state_size = 256}};
  for (const SsdOptions& o : shapes) check_tensor_cores({200, 0, 1, 64, 131}, o);
}

TEST_CASE("ssd_scan: on tensor cores, sequences of several segments against f64" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  constexpr std::int64_t segment = ssd_segment_tokens;
  check_tensor_cores({3 * segment + 150, 0, segment},
                     {.heads = 1, .head_dim = 64, .groups = 1, .state_size = 128});
  check_tensor_cores({70, segment + 1, 1}, {.heads = 1, .head_dim = 80, .groups = 1, .state_size = 128});
  check_tensor_cores({segment + 1}, {.heads = 1, .head_dim = 64, .groups = 1, .state_size = 256});
}

TEST_CASE("ssd_scan: on tensor cores, with a sequence for every multiprocessor, heads are not cut" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  // Most are empty: heads are cut or not by the number of sequences.
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(cuda::describe_device().multiprocessors), 0);
  lengths[1] = lengths[4] = lengths.back() = 2;
  lengths[5] = 150;
  for (const std::int64_t state : {128, 256})
    check_tensor_cores(lengths, {.heads = 1, .head_dim = 64, .groups = 1, .state_size = state});
}

TEST_CASE("ssd_scan: f32 parameters beside bf16 activations" * doctest::test_suite("cuda")) {
  for (const Device device : test_devices("ssd_scan")) {
    Case c = make_case({40, 3}, small, DType::bf16, device);
    const auto plain = run(c, "chunked");
    for (std::size_t i = 4; i < 7; ++i) c.in[i] = c.in[i].to(DType::f32);
    const auto mixed = run(c, "chunked");
    for (std::size_t i = 0; i < plain.size(); ++i) CHECK_BITS(mixed[i], plain[i]);
  }
}

TEST_CASE("ssd_scan: slow steps stay accurate beside one that wipes the state" *
          doctest::test_suite("cuda")) {
  SsdOptions o = small;
  o.chunk_size = 64;
  Case c = make_case({64}, o, DType::f32);
  c.in[4].fill(9);  // A about -8100
  c.in[6].fill(0);
  c.in[1] = Tensor::empty({64, 4}, DType::f32, Device::cpu);
  c.in[1].fill(-12);                 // dt A about -0.05
  c.in[1].narrow(0, 5, 1).fill(30);  // dt A about -240000
  const Tensor dy = random_tensor(c.in[0].shape(), DType::f32, 9);
  const auto want = run(as_dtype(c, DType::f64), "recurrent", dy.to(DType::f64));
  for (const Device device : test_devices("ssd_scan")) {
    const auto got = run(on_device(c, device), "chunked", dy.to(device));
    for (const std::size_t i : {0, 1, 2, 3, 4, 5}) {
      CAPTURE(device);
      CAPTURE(names[i]);
      CHECK(relative_error(got[i], want[i]) < scan_tol(DType::f32, 64));
    }
  }
}
