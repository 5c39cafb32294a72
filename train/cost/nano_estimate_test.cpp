#include "train/cost/nano_estimate.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <iterator>

using namespace nemocube;

namespace {

/// Rates at which nothing but counted kernels takes time.
GpuRates boundless() {
  GpuRates rates;
  rates.dram_bytes = rates.tensor_flops = rates.single_flops = 1e300;
  return rates;
}

/// Every case has a kernel of 1 us at the sizes here; the shares of work are easy to tell.
CountedCases microseconds() {
  const auto one = [](const char* op, const char* variant, BenchShape shape) {
    return CountedCase{op, variant, std::move(shape), {{cat(op, "_kernel"), 1e-6, 3e-6, "issue"}}};
  };
  return CountedCases({one("rmsnorm", "fused forward+backward", {{"rows", 32}}),
                       one("causal_conv1d", "forward+backward", {{"tokens", 16}}),
                       one("ssd_scan", "chunked forward+backward", {{"tokens", 8}}),
                       one("gated_rmsnorm", "forward+backward", {{"tokens", 4}}),
                       one("attention", "tiled forward", {{"sequences", 1}, {"queries", 4}}),
                       one("attention", "tiled backward", {{"sequences", 1}, {"queries", 9}}),
                       one("router", "choice", {{"tokens", 64}}),
                       one("router", "gradient", {{"tokens", 32}}),
                       one("permute", "order", {{"tokens", 64}}),
                       one("permute", "permute forward+backward", {{"tokens", 32}}),
                       one("permute", "unpermute forward+backward", {{"tokens", 16}}),
                       one("grouped_linear", "forward, even rows", {{"experts", 1}, {"rows", 3}}),
                       one("grouped_linear", "backward input, even rows", {{"experts", 1}, {"rows", 6}}),
                       one("grouped_linear", "backward weight, even rows", {{"experts", 2}, {"rows", 6}}),
                       one("relu2", "forward", {{"rows", 4}, {"cols", 3712}}),
                       one("relu2", "backward", {{"rows", 8}, {"cols", 3712}}),
                       one("embedding", "forward+backward", {{"tokens", 64}}),
                       one("cross_entropy", "losses and gradient of a chunk", {{"rows", 16}}),
                       one("adamw", "with bf16 copy", {{"elements", 1'000'000}}),
                       one("global_norm", "norm", {{"elements", 1'000'000}})});
}

CountedCases with(CountedCase c) {
  std::vector<CountedCase> cases{std::move(c)};
  std::ranges::copy(microseconds().all(), std::back_inserter(cases));
  return CountedCases(std::move(cases));
}

double microseconds_of(const std::vector<Cost>& costs) { return total_seconds(costs) * 1e6; }

}  // namespace

TEST_CASE("bench nano: products take the longer of bytes and operations") {
  EstimateOptions o;
  o.product_fraction = 0.5;
  o.rates.dram_bytes = 1e12;
  o.rates.tensor_flops = 1e15;
  // Operations: 2 * 1000 * 2000 * 3000 at half of the peak, 24 us. Bytes: rows 10 MB, the weight 12 MB, 22
  // us; of the weight's gradient 48 MB, 58 us.
  const Cost cost = linear_products("layer", 1000, 2000, 3000, o);
  CHECK(cost.seconds == doctest::Approx(24e-6 + 24e-6 + 58e-6));
  CHECK(cost.bound == "operations, DRAM");
}

TEST_CASE("bench nano: counted kernels grow to the tokens of the estimate") {
  EstimateOptions o;
  o.tokens = 64;
  o.rates = boundless();
  const CountedCases counted = microseconds();
  // Norm 64 / 32, convolution 64 / 16, scan 64 / 8, gated norm 64 / 4.
  CHECK(microseconds_of(costs_of_block('M', counted, o)) == doctest::Approx(2 + 4 + 8 + 16));
  // Norm, and pairs of query and key: 64 * 65 / 2 = 2080 over 4 * 5 / 2 = 10 and 9 * 10 / 2 = 45.
  CHECK(microseconds_of(costs_of_block('*', counted, o)) == doctest::Approx(2 + 208 + 2080.0 / 45));
  // Norm 2; router 1 + 2; rows in order 1 + 2 + 4. Three rows for each of 128 experts, in two layers: 256
  // times the case of three rows, 128 times that of six, 128 times that of two experts with three rows each.
  // Relu2 of 6 * 1856 + 3712 columns, which are four times 3712: 4 * 64 / 4 and 4 * 64 / 8.
  CHECK(microseconds_of(costs_of_block('E', counted, o)) ==
        doctest::Approx(2 + 3 + 7 + 256 + 128 + 128 + 64 + 32));
  // Embedding 1, norm 2, loss 4.
  CHECK(microseconds_of(costs_of_ends(counted, o)) == doctest::Approx(1 + 2 + 4));
  CHECK_THROWS_AS(costs_of_block('-', counted, o), std::logic_error);
}

TEST_CASE("bench nano: kernels that walk along a sequence stay in the blocks that they have") {
  EstimateOptions o;
  o.tokens = 64;
  o.rates = boundless();
  const CountedCases counted =
      with({"ssd_scan",
            "chunked forward+backward",
            {{"tokens", 16}},
            {{"walk_kernel<64>", 1e-6, 3e-6, "issue"}, {"other_kernel", 1e-6, 3e-6, "issue"}}});
  CHECK(microseconds_of(costs_of_block('M', counted, o)) == doctest::Approx(2 + 4 + (4 * 3 + 4 * 1) + 16));
}

TEST_CASE("bench nano: a kernel of attention that DRAM bounds grows with the tokens") {
  EstimateOptions o;
  o.tokens = 64;
  o.rates = boundless();
  const CountedCases counted = with({"attention",
                                     "tiled backward",
                                     {{"sequences", 1}, {"queries", 4}},
                                     {{"delta_kernel", 1e-6, 1e-6, "DRAM"}}});
  CHECK(microseconds_of(costs_of_block('*', counted, o)) == doctest::Approx(2 + 208 + 16));
}

TEST_CASE("bench nano: the optimizer's share of the parameters") {
  CHECK(nano_parameters() == doctest::Approx(31.58e9).epsilon(1e-3));
  EstimateOptions o;
  o.optimizer_ranks = 4;
  // 1 us a million elements; the norm was counted of elements of half the size.
  CHECK(microseconds_of(costs_of_optimizer(microseconds(), o)) ==
        doctest::Approx((1 + 2) * nano_parameters() / 4e6));
}

TEST_CASE("bench nano: grouped products are no faster than a product of a library is taken to be") {
  EstimateOptions o;
  o.tokens = 64;
  o.product_fraction = 1;
  o.rates = boundless();
  o.rates.tensor_flops = 2.0 * 3 * 2688 * 1856 / 5e-6;  // a product of three rows takes 5 us
  double seconds = 0;
  for (const Cost& cost : costs_of_block('E', microseconds(), o))
    if (cost.part == "grouped_linear") {
      seconds += cost.seconds;
      CHECK(cost.bound == "operations");
    }
  CHECK(seconds == doctest::Approx(3 * 2 * 128 * 5e-6));
}

TEST_CASE("bench nano: products with the f32 gate are of its bf16 terms") {
  EstimateOptions o;
  o.tokens = 1000;
  o.product_fraction = 0.5;
  o.rates = boundless();
  o.rates.tensor_flops = 1e12;
  for (const Cost& cost : costs_of_block('E', microseconds(), o))
    if (cost.part == "router gate")
      CHECK(cost.seconds == doctest::Approx((3 + 6 + 3) * 2.0 * 1000 * 2688 * 128 / 0.5e12));
}

TEST_CASE("bench nano: a pattern adds up its blocks, the longest kernel first") {
  EstimateOptions o;
  o.tokens = 64;
  o.rates = boundless();
  const std::vector<Cost> costs = costs_of_pattern("M*M", microseconds(), o);
  CHECK(microseconds_of(costs) == doctest::Approx(2 * 30 + 2 + 208 + 2080.0 / 45));
  REQUIRE(costs.size() > 1);
  CHECK(costs[0].part == "attention");
  CHECK(costs[1].part == "gated_rmsnorm");
  CHECK(costs[1].seconds == doctest::Approx(32e-6));
}

TEST_CASE("bench nano: the section has the slice, the model and the published figures") {
  EstimateOptions o;
  o.tokens = 64;
  o.rates = boundless();
  o.optimizer_ranks = 1'000'000'000;
  const std::string text = nano_estimate(microseconds(), o);
  // Four Mamba blocks of 30 us, three MoE blocks of 620 us, an attention block of 256.2 us: 2236 us.
  CHECK(text.find("All: 2.24 ms, 28,620 tokens/s of the slice.") != std::string::npos);
  CHECK(text.find("| Mamba block | 4 | 23 | 0.03 |") != std::string::npos);
  CHECK(text.find("| MoE block | 3 | 23 | 0.62 |") != std::string::npos);
  CHECK(text.find("| attention block | 1 | 6 | 0.26 |") != std::string::npos);
  CHECK(text.find("| NeMo AutoModel | 16,789 |") != std::string::npos);
  CHECK(text.find("| Megatron-Bridge | 14,195 |") != std::string::npos);
  CHECK(text.find("**estimate**") != std::string::npos);
}
