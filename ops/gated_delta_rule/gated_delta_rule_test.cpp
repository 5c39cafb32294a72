#include <doctest/doctest.h>

#include <cmath>

#include "core/cuda/runtime.h"
#include "ops/gated_delta_rule/gated_delta_rule_kernels.h"
#include "ops/gated_delta_rule/test_cases.h"
#include "tests/support/devices.h"
#include "tests/support/gradcheck.h"

using namespace nemocube;
using namespace nemocube::testing;
using namespace nemocube::testing::delta_rule;

TEST_CASE("gated_delta_rule: every variant against the plain recurrence" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices("gated_delta_rule"), [](Device device, DType dtype) {
    for_variants(device, [&](const char* variant) {
      CAPTURE(variant);
      const Case c = with_initial(make_case({23, 0, 1, 40}, small, dtype, device));
      const auto got = run(c, variant), without_tape = run_forward(c, variant), want = reference(c);
      for (const std::size_t i : {0, 1}) {
        CHECK(result_error(i, got, want) < rule_tol(result_dtype(i, dtype), 40));
        CHECK_BITS(without_tape[i], got[i]);
      }
    });
  });
}

TEST_CASE("gated_delta_rule: any chunk length and number of tokens") {
  for (const std::int64_t tokens : {1, 23, 64, 65, 130})
    for (const std::int64_t chunk : {1, 4, 6, 23, 64, 1000}) {
      CAPTURE(tokens);
      CAPTURE(chunk);
      Case c = make_case({tokens}, small, DType::f64);
      c.options.chunk_size = chunk;
      const auto want = reference(c), got = run_forward(c, "chunked");
      CHECK(relative_error(got[0], want[0]) < rule_tol(DType::f64, tokens));
      CHECK(relative_error(got[1], want[1]) < rule_tol(DType::f64, tokens));
    }
}

TEST_CASE("gated_delta_rule: the variants are two computations, so they round differently") {
  const Case c = make_case({64, 30}, small, DType::f32);
  const auto chunked = run(c, "chunked"), recurrent = run(c, "recurrent");
  for (const std::size_t i : {0, 2, 4}) {  // o, dq and dv
    CAPTURE(names[i]);
    CHECK(relative_error(chunked[i], recurrent[i]) > 0);
  }
}

TEST_CASE("gated_delta_rule: chunked against recurrent in f64, any chunk length, forward and all gradients") {
  const DeltaRuleOptions shapes[] = {small,
                                     {.key_heads = 1, .value_heads = 2, .key_dim = 32, .value_dim = 16},
                                     {.key_heads = 3, .value_heads = 3, .key_dim = 1, .value_dim = 1}};
  for (const DeltaRuleOptions& shape : shapes)
    for (const bool initial : {false, true}) {
      Case c = make_case({23, 0, 1, 130, 64}, shape, DType::f64);
      if (initial) c = with_initial(c);
      const auto want = run(c, "recurrent");
      for (const std::int64_t chunk : {1, 4, 7, 23, 33, 64, 1000}) {
        c.options.chunk_size = chunk;
        const auto got = run(c, "chunked");
        for (std::size_t i = 0; i < got.size(); ++i) {
          CAPTURE(shape.value_heads);
          CAPTURE(initial);
          CAPTURE(chunk);
          CAPTURE(names[i]);
          CHECK(result_error(i, got, want) < rule_tol(DType::f64, 130));
        }
      }
    }
}

TEST_CASE("gated_delta_rule: against finite differences") {
  for (const char* variant : {"chunked", "recurrent"})
    for (const bool initial : {false, true}) {
      CAPTURE(variant);
      CAPTURE(initial);
      const KernelChoice choice = choose(variant);
      const DeltaRuleOptions o{
          .key_heads = 2, .value_heads = 4, .key_dim = 3, .value_dim = 2, .chunk_size = 4};
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

TEST_CASE("gated_delta_rule: gradients in f32 and bf16 against f64" * doctest::test_suite("cuda")) {
  const auto check = [](const Case& c, std::int64_t longest) {
    const DType dtype = c.in[2].dtype();
    const Tensor d_o = random_tensor(c.in[2].shape(), dtype, 9);
    const auto want = run(as_dtype(on_device(c, Device::cpu), DType::f64), "recurrent", d_o.to(DType::f64));
    for_variants(c.in[2].device(), [&](const char* variant) {
      const auto got = run(c, variant, d_o.to(c.in[2].device()));
      for (std::size_t i = 0; i < got.size(); ++i) {
        CAPTURE(variant);
        CAPTURE(names[i]);
        CHECK(result_error(i, got, want) < rule_tol(result_dtype(i, dtype), longest));
      }
    });
  };
  for_dtypes(test_devices("gated_delta_rule"), [&](Device device, DType dtype) {
    if (dtype == DType::f64) return;
    Case aligned = make_case({70, 37}, {.key_heads = 1, .value_heads = 2, .key_dim = 16, .value_dim = 16},
                             dtype, device);
    for (Tensor& t : aligned.in) t = t.clone();  // rows that 16-byte accesses can read
    check(with_initial(aligned), 70);
    // Heads of more than one tile of 64, and small ones. (Of a key of one element the normalised row is
    // almost constant: its gradient would be rounding.)
    check(make_case({66}, {.key_heads = 1, .value_heads = 1, .key_dim = 70, .value_dim = 66}, dtype, device),
          66);
    check(make_case({5, 66}, {.key_heads = 2, .value_heads = 2, .key_dim = 3, .value_dim = 1}, dtype, device),
          66);
  });
}

namespace {

void check_finite(const std::vector<Tensor>& got) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(names[i]);
    for (const double value : got[i].to_vector()) REQUIRE(std::isfinite(value));
  }
}

/// Against the recurrence in f64. The terms of decays' gradients are `cancelled` times as large as their
/// sums.
void check_hard(const Case& c, const char* variant, double cancelled = 1) {
  const DType dtype = c.in[2].dtype();
  const Tensor d_o = random_tensor(c.in[2].shape(), dtype, 9);
  const auto got = run(c, variant, d_o.to(c.in[2].device()));
  check_finite(got);
  const auto want = run(as_dtype(on_device(c, Device::cpu), DType::f64), "recurrent", d_o.to(DType::f64));
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(names[i]);
    const bool of_decays = i == 5 || i >= 7;
    CHECK(result_error(i, got, want) < rule_tol(result_dtype(i, dtype), 64) * (of_decays ? cancelled : 1));
  }
}

}  // namespace

TEST_CASE("gated_delta_rule: decays that underflow give exact zeros and no NaN" *
          doctest::test_suite("cuda")) {
  for_dtypes(test_devices("gated_delta_rule"), [](Device device, DType dtype) {
    if (dtype == DType::bf16) return;
    for_variants(device, [&](const char* variant) {
      CAPTURE(variant);
      DeltaRuleOptions o = small;
      o.chunk_size = 16;
      Case c = make_case({30}, o, dtype, device);
      c.in[5].fill(12);  // g about -4 million
      c.in[6].fill(25);
      const Tensor v = Tensor::zeros(c.in[2].shape(), dtype, device);
      v.narrow(0, 0, 1).fill(1);
      c.in[2] = v;
      const auto got = run(c, variant);
      CHECK_CLOSE(got[0].narrow(0, 1, 29), Tensor::zeros({29, 40}, dtype, Device::cpu), (Tol{0, 0}));
      CHECK_CLOSE(got[1], Tensor::zeros(got[1].shape(), dtype, Device::cpu), (Tol{0, 0}));
      CHECK(relative_error(got[0], reference(c)[0]) < rule_tol(dtype, 30));
      check_finite(got);
      // Nothing depends on the decays any more.
      for (const std::size_t i : {5, 7, 8})
        CHECK_CLOSE(got[i], Tensor::zeros(got[i].shape(), dtype, Device::cpu), (Tol{0, 0}));
    });
  });
}

TEST_CASE("gated_delta_rule: gates near 0 and 1, rows of zeros, equal keys" * doctest::test_suite("cuda")) {
  for_dtypes(test_devices("gated_delta_rule"), [](Device device, DType dtype) {
    if (dtype == DType::bf16) return;
    for_variants(device, [&](const char* variant) {
      CAPTURE(variant);
      DeltaRuleOptions o = small;
      o.chunk_size = 16;
      const Case c = make_case({30}, o, dtype, device);
      {
        Case gates = c;  // beta from e^-30 over 1/2 to 1 - e^-14
        gates.in[4] = c.in[4].clone();
        gates.in[4].narrow(0, 0, 10).fill(-30);
        gates.in[4].narrow(0, 10, 10).fill(14);
        check_hard(gates, variant);
      }
      {
        Case zeros = c;
        for (const std::size_t i : {0, 1, 2}) {
          zeros.in[i] = c.in[i].clone();
          zeros.in[i].narrow(0, static_cast<std::int64_t>(5 * i), 7).zero();
        }
        check_hard(zeros, variant);
      }
      {
        // The triangular systems have entries near 1, and tokens forget all but 1 - beta of what was there.
        Case equal = c;
        for (const std::size_t i : {1, 4, 6}) equal.in[i] = c.in[i].clone();
        equal.in[1].fill(1);
        equal.in[4].fill(9);
        equal.in[6].fill(-9);
        check_hard(equal, variant, std::exp(9));
      }
    });
  });
}

TEST_CASE("gated_delta_rule: on tensor cores, against f64" * doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  const DeltaRuleOptions o{.key_heads = 1, .value_heads = 2, .key_dim = 128, .value_dim = 128};
  REQUIRE(delta_rule_on_tensor_cores(Device::cuda, DType::bf16, o));
  for (const bool slow : {false, true}) {  // slow: all states last
    CAPTURE(slow);
    Case c = make_case(slow ? std::vector<std::int64_t>{150} : std::vector<std::int64_t>{70, 0, 1, 64}, o,
                       DType::bf16, Device::cuda);
    if (slow) {
      // Rows that 16-byte accesses can read, and no initial state.
      for (Tensor& t : c.in) t = t.clone();
      c.in[6].fill(-6);
    } else {
      c = with_initial(c);
    }
    const Tensor d_o = random_tensor(c.in[2].shape(), DType::bf16, 9);
    const auto got = run(c, "chunked", d_o.to(Device::cuda)), again = run(c, "chunked", d_o.to(Device::cuda));
    const auto want = run(as_dtype(on_device(c, Device::cpu), DType::f64), "recurrent", d_o.to(DType::f64));
    for (std::size_t i = 0; i < got.size(); ++i) {
      CAPTURE(names[i]);
      CHECK_BITS(got[i], again[i]);
      // Operands of second products are rounded to bf16, so this holds for the results that are f32 too.
      CHECK(result_error(i, got, want) < rule_tol(DType::bf16, 150));
    }
  }
}
