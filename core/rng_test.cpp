#include "core/rng.h"

#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "tests/support/compare.h"

using namespace nemocube;

TEST_CASE("philox: known answers of the Random123 distribution") {
  CHECK(philox({0, 0, 0, 0}, {0, 0}) ==
        std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("random stream: a slice is the slice of the whole") {
  const RandomStream stream(5, "backbone.layers.3.mixer.up_proj.weight");
  const Tensor whole = Tensor::empty({7, 11}, DType::f32, Device::cpu),
               part = Tensor::empty({2, 11}, DType::f32, Device::cpu);
  fill_normal(whole, stream, 0.5, 2);
  fill_normal(part, stream, 0.5, 2, 3 * 11);
  CHECK_BITS(part, whole.narrow(0, 3, 2));
  const Tensor wide = Tensor::zeros({7, 20}, DType::f32, Device::cpu);
  fill_normal(wide.narrow(1, 4, 11), stream, 0.5, 2);
  CHECK_BITS(wide.narrow(1, 4, 11).clone(), whole);
}

TEST_CASE("random stream: other seeds and names give other draws") {
  CHECK(RandomStream(1, "a").bits(0) != RandomStream(2, "a").bits(0));
  CHECK(RandomStream(1, "a").bits(0) != RandomStream(1, "b").bits(0));
  CHECK(RandomStream(1, "a").bits(0) != RandomStream(1, "a").bits(1));
}

TEST_CASE("inverse normal: against the error function") {
  for (double p = 1e-12; p < 1; p = p < 0.01 ? p * 3 : p + 0.003) {
    CAPTURE(p);
    const double x = inverse_normal(p);
    CHECK(0.5 * std::erfc(-x / std::sqrt(2.0)) == doctest::Approx(p).epsilon(2e-8));
    CHECK(inverse_normal(1 - p) == doctest::Approx(-x).epsilon(1e-4));
  }
}

TEST_CASE("random stream: moments") {
  const RandomStream stream(42, "moments");
  const int n = 200000;
  double sum = 0, squares = 0, uniform = 0;
  std::array<int, 10> bins{};
  for (std::uint64_t i = 0; i < n; ++i) {
    const double z = stream.normal(i);
    sum += z;
    squares += z * z;
    uniform += RandomStream(43, "u").uniform(i);
    ++bins[RandomStream(44, "b").below(i, 10)];
  }
  const double sigma = 1 / std::sqrt(static_cast<double>(n));  // of the mean; the bound is 5 sigma
  CHECK(std::abs(sum / n) < 5 * sigma);
  CHECK(std::abs(squares / n - 1) < 5 * std::sqrt(2.0) * sigma);
  CHECK(std::abs(uniform / n - 0.5) < 5 * sigma / std::sqrt(12.0));
  for (const int count : bins) CHECK(std::abs(count - n / 10) < 5 * std::sqrt(n * 0.09));
}

TEST_CASE("random table: rows, columns, seeds and names give draws of their own") {
  const RandomTable table(RandomStream(1, "a"));
  std::set<std::uint32_t> draws;
  // Numbers that differ in the lower or the upper half of their bits, and rows and columns that change
  // places.
  const std::vector<std::uint64_t> numbers{0, 1, 2, 3, 4, 5, 8, std::uint64_t{1} << 32, ~std::uint64_t{0}};
  for (const std::uint64_t row : numbers)
    for (const std::uint64_t column : numbers) draws.insert(table.bits(row, column));
  CHECK(draws.size() == numbers.size() * numbers.size());
  CHECK(RandomTable(RandomStream(2, "a")).bits(0, 0) != table.bits(0, 0));
  CHECK(RandomTable(RandomStream(1, "b")).bits(0, 0) != table.bits(0, 0));
  CHECK(RandomTable(RandomStream(1, "a")).bits(7, 9) == table.bits(7, 9));
  CHECK(table.block(7, 2)[1] == table.bits(7, 9));
}

TEST_CASE("random table: its draws are blocks of philox") {
  const RandomTable table(RandomStream(3, "masks"));
  const std::uint64_t row = 0x123456789abcdef0, block = 0x0fedcba987654321;
  CHECK(table.block(row, block) == philox({0x9abcdef0, 0x12345678, 0x87654321, 0x0fedcba9}, table.key()));
}
