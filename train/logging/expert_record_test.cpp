#include "train/logging/expert_record.h"

#include <doctest/doctest.h>

using namespace nemocube;

TEST_CASE("expert record: tokens of each layer and how uneven they are") {
  const std::vector<Tensor> counts{Tensor::from<std::int64_t>({1, 1, 6, 0}, {4}),
                                   Tensor::from<std::int64_t>({2, 2, 2, 2}, {4})};
  const ExpertRecord record = expert_record(counts);
  CHECK(record.tokens == std::vector<std::vector<std::int64_t>>{{1, 1, 6, 0}, {2, 2, 2, 2}});
  CHECK(record.imbalance == std::vector<double>{3, 1});
  CHECK(record.worst() == 3);
  CHECK(expert_record({}).worst() == 0);
}
