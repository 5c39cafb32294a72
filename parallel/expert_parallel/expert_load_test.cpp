#include "parallel/expert_parallel/expert_load.h"

#include <doctest/doctest.h>

#include <cmath>

using namespace nemocube;

TEST_CASE("expert load: least, most, imbalance and variation") {
  const ExpertLoad load = expert_load(Tensor::from<std::int64_t>({2, 4, 4, 4, 5, 5, 7, 9}, {8}));
  CHECK(load.least == 2);
  CHECK(load.most == 9);
  CHECK(load.mean == 5);
  CHECK(load.imbalance == 1.8);
  CHECK(load.variation == 0.4);
}

TEST_CASE("expert load: even, all to two of six experts, one expert, no tokens") {
  const ExpertLoad even = expert_load(Tensor::from<std::int64_t>({3, 3, 3}, {3}));
  CHECK(even.imbalance == 1);
  CHECK(even.variation == 0);
  const ExpertLoad crowded = expert_load(Tensor::from<std::int64_t>({0, 5, 0, 0, 5, 0}, {6}));
  CHECK(crowded.least == 0);
  CHECK(crowded.imbalance == doctest::Approx(6.0 / 2));
  CHECK(crowded.variation == doctest::Approx(std::sqrt(6.0 / 2 - 1)));
  CHECK(expert_load(Tensor::from<std::int64_t>({7}, {1})).imbalance == 1);
  const ExpertLoad none = expert_load(Tensor::from<std::int64_t>({0, 0}, {2}));
  CHECK(none.mean == 0);
  CHECK(none.imbalance == 1);
  CHECK(none.variation == 0);
}

TEST_CASE("expert load: errors") {
  CHECK_THROWS_AS(expert_load(Tensor::from<std::int32_t>({1}, {1})), Error);
  CHECK_THROWS_AS(expert_load(Tensor::zeros({2, 2}, DType::i64, Device::cpu)), Error);
  CHECK_THROWS_AS(expert_load(Tensor::zeros({0}, DType::i64, Device::cpu)), Error);
}
