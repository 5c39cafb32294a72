#include "ops/sample_tokens/sample_tokens.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

using Logits = std::vector<float>;

SamplingOptions sampled(double temperature, std::int64_t top_k = 0, double top_p = 1) {
  return {temperature, top_k, top_p};
}

/// What each of the uniform numbers draws from the same logits.
std::vector<std::int64_t> draws(Device device, const Logits& logits, const SamplingOptions& o,
                                const std::vector<double>& uniform) {
  const auto rows = std::ssize(uniform), vocabulary = std::ssize(logits);
  Logits all;
  for (std::int64_t r = 0; r < rows; ++r) all.insert(all.end(), logits.begin(), logits.end());
  const auto ids = sample_tokens(Tensor::from(all, {rows, vocabulary}).to(device), o,
                                 Tensor::from(uniform, {rows}).to(device))
                       .to_vector();
  return {ids.begin(), ids.end()};
}
std::int64_t draw(Device device, const Logits& logits, const SamplingOptions& o, double uniform) {
  return draws(device, logits, o, {uniform})[0];
}

/// Uniform numbers that measure a share. The software GPU takes a millisecond for each.
int grid_of(Device device) { return device.is_cuda() ? 40 : 1000; }

/// For each token, the share of the uniform numbers in (0, 1) that draw the token, measured on a grid.
std::map<std::int64_t, double> shares(Device device, const Logits& logits, const SamplingOptions& o) {
  const int grid = grid_of(device);
  std::vector<double> uniform;
  for (int i = 0; i < grid; ++i) uniform.push_back((i + 0.5) / grid);
  std::map<std::int64_t, double> all;
  for (const std::int64_t id : draws(device, logits, o, uniform)) all[id] += 1.0 / grid;
  return all;
}
/// Two steps of the grid lie between a share and what is measured, at most.
doctest::Approx about(double share, Device device) {
  return doctest::Approx(share).epsilon(2.0 / grid_of(device)).scale(1);
}

}  // namespace

TEST_CASE("sample_tokens: greedy takes the largest, the lowest id on a tie, whatever the draw" *
          doctest::test_suite("cuda")) {
  for (const Device device : test_devices("sample_tokens")) {
    CAPTURE(device);
    CHECK(draws(device, {1, 3, 2, 3, -1}, sampled(0), {0.001, 0.5, 0.999}) ==
          std::vector<std::int64_t>{1, 1, 1});
    CHECK(draw(device, {7}, sampled(0), 0.5) == 0);
    CHECK(draw(device, {-0.0F, 0.0F}, sampled(0), 0.5) == 0);
    CHECK(draw(device, {0.0F, -0.0F}, sampled(0), 0.5) == 0);
    CHECK(draw(device, {-5, -4, -6}, sampled(1e-30), 0.99) == 1);
  }
}

TEST_CASE("sample_tokens: shares are the softmax at the temperature" * doctest::test_suite("cuda")) {
  const Logits logits{0.3F, -1.2F, 2.0F, 1.9F, 0.0F};
  for (const Device device : test_devices("sample_tokens")) {
    CAPTURE(device);
    for (const double temperature : {0.5, 3.0}) {
      double total = 0;
      for (const float l : logits) total += std::exp(static_cast<double>(l) / temperature);
      auto got = shares(device, logits, sampled(temperature));
      for (std::size_t v = 0; v < logits.size(); ++v)
        CHECK(got[static_cast<std::int64_t>(v)] ==  // 0 for one that is never drawn
              about(std::exp(static_cast<double>(logits[v]) / temperature) / total, device));
    }
    // Large logits do not overflow.
    CHECK(shares(device, {1e30F, 1e30F, -1e30F}, sampled(1)).at(1) == about(0.5, device));
  }
}

TEST_CASE("sample_tokens: top_k keeps the k most likely, the lower id on a tie" *
          doctest::test_suite("cuda")) {
  const Logits logits{1, 2, 2, 2, 0};
  for (const Device device : test_devices("sample_tokens")) {
    CAPTURE(device);
    const auto got = shares(device, logits, sampled(1, 2));
    CHECK(got.size() == 2);
    CHECK(got.at(1) == about(0.5, device));
    CHECK(got.at(2) == about(0.5, device));
    CHECK(shares(device, logits, sampled(1, 1)).size() == 1);
    CHECK(draw(device, logits, sampled(1, 1), 0.9) == 1);
    CHECK(shares(device, logits, sampled(1, 5)) == shares(device, logits, sampled(1)));
    CHECK(shares(device, logits, sampled(1, 99)) == shares(device, logits, sampled(1)));
  }
}

TEST_CASE("sample_tokens: top_p keeps the fewest tokens that reach p, at least one" *
          doctest::test_suite("cuda")) {
  // Probabilities 0.5, 0.25, 0.125, 0.125.
  const auto l = [](double p) { return static_cast<float>(std::log(p)); };
  const Logits logits{l(0.125), l(0.5), l(0.125), l(0.25)};
  for (const Device device : test_devices("sample_tokens")) {
    CAPTURE(device);
    CHECK(shares(device, logits, sampled(1, 0, 1e-9)).size() == 1);
    CHECK(shares(device, logits, sampled(1, 0, 0.49)).size() == 1);
    const auto two = shares(device, logits, sampled(1, 0, 0.6));
    REQUIRE(two.size() == 2);
    CHECK(two.at(1) == about(2.0 / 3, device));
    CHECK(two.at(3) == about(1.0 / 3, device));
    const auto three = shares(device, logits, sampled(1, 0, 0.8));
    CHECK(three.size() == 3);
    CHECK(three.contains(0));
    CHECK(shares(device, logits, sampled(1, 0, 1)).size() == 4);
    // With top_k as well, p is a share of the probability that top_k leaves.
    CHECK(shares(device, logits, sampled(1, 2, 0.66)).size() == 1);
  }
}

TEST_CASE("sample_tokens: the ends of the ranges" * doctest::test_suite("cuda")) {
  const Logits logits{1, 3, 3, -1000, 2};
  const double infinity = std::numeric_limits<double>::infinity();
  const double smallest = std::numeric_limits<double>::denorm_min();
  for (const Device device : test_devices("sample_tokens")) {
    CAPTURE(device);
    const std::vector<double> uniform{1e-300, 0.4, 0.6, 1 - 1e-16};
    using Ids = std::vector<std::int64_t>;
    CHECK(draws(device, logits, sampled(smallest), uniform) == Ids{1, 1, 2, 2});
    CHECK(draws(device, logits, sampled(1, 0, smallest), uniform) == Ids{1, 1, 1, 1});
    CHECK(draws(device, logits, sampled(1, 1), uniform) == Ids{1, 1, 1, 1});
    CHECK(draws(device, logits, sampled(1, std::numeric_limits<std::int64_t>::max()), uniform) ==
          draws(device, logits, sampled(1), uniform));
    CHECK(draws(device, {7}, sampled(2, 3, 0.5), uniform) == Ids{0, 0, 0, 0});
    // Most likely first.
    CHECK(draws(device, logits, sampled(infinity), {0.1, 0.3, 0.5, 0.7, 0.9}) == Ids{1, 2, 4, 0, 3});
    CHECK(draw(device, {-3e38F, 3e38F}, sampled(1e-3), 0.5) == 1);
  }
}

TEST_CASE("sample_tokens: rows of their own, strided, and every device draws the same" *
          doctest::test_suite("cuda")) {
  const Tensor wide = random_tensor({7, 700}, DType::f32, 1, 3.0);
  const Tensor uniform = Tensor::from<double>({0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95}, {7});
  for (const SamplingOptions& o :
       {sampled(0), sampled(1), sampled(0.7, 40), sampled(1.3, 0, 0.9), sampled(1, 100, 0.5)}) {
    const auto window = [&](Device device) { return wide.to(device).narrow(-1, 3, 655); };
    const auto want = sample_tokens(window(Device::cpu), o, uniform).to_vector();
    for (const Device device : test_devices("sample_tokens")) {
      CAPTURE(device);
      CHECK(sample_tokens(window(device), o, uniform.to(device)).to_vector() == want);
    }
  }
}

TEST_CASE("sample_tokens: -1 where a logit is not finite; no rows" * doctest::test_suite("cuda")) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const Device device : test_devices("sample_tokens"))
    for (const double temperature : {0.0, 1.0}) {
      CAPTURE(device);
      const Tensor logits =
          Tensor::from<float>({1, inf, 2, 1, 3, nan, 1, 2, 3, -inf, 0, 0}, {4, 3}).to(device);
      const Tensor uniform = Tensor::from<double>({0.5, 0.5, 0.5, 0.5}, {4}).to(device);
      CHECK(sample_tokens(logits, sampled(temperature), uniform).to_vector() ==
            std::vector<double>{-1, -1, 2, -1});
      CHECK(sample_tokens(logits.narrow(0, 0, 0), sampled(temperature), uniform.narrow(0, 0, 0)).numel() ==
            0);
    }
}

TEST_CASE("sample_tokens: errors") {
  const Tensor logits = Tensor::zeros({2, 3}, DType::f32, Device::cpu),
               uniform = Tensor::zeros({2}, DType::f64, Device::cpu);
  const auto message = [&](const Tensor& l, const SamplingOptions& o, const Tensor& u) {
    return message_of([&] { sample_tokens(l, o, u); });
  };
  CHECK(message(logits, sampled(-1), uniform) == "sample_tokens: temperature must be >= 0, got -1");
  CHECK(message(logits, sampled(1, -1), uniform) == "sample_tokens: top_k must be >= 0, got -1");
  CHECK(message(logits, sampled(1, 0, 0), uniform) == "sample_tokens: top_p must lie in (0, 1], got 0");
  CHECK(message(logits.to(DType::bf16), {}, uniform) == "sample_tokens: logits: want f32, got bf16");
  CHECK(message(logits, {}, uniform.narrow(0, 0, 1)) == "sample_tokens: uniform: want shape [2], got [1]");
}
