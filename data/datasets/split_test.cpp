#include "data/datasets/split.h"

#include <doctest/doctest.h>

#include "core/error.h"

using namespace nemocube;

TEST_CASE("split: slices as in Python") {
  const auto rows = [](const char* text, std::int64_t size) {
    return DatasetSplit::parse(text).rows("data", size);
  };
  using Range = std::pair<std::int64_t, std::int64_t>;
  CHECK(DatasetSplit::parse("validation[:3]").name == "validation");
  CHECK(rows("train", 10) == Range{0, 10});
  CHECK(rows("train[:]", 10) == Range{0, 10});
  CHECK(rows("train[:3]", 10) == Range{0, 3});
  CHECK(rows("train[3:]", 10) == Range{3, 10});
  CHECK(rows("train[3:5]", 10) == Range{3, 5});
  CHECK(rows("train[-2:]", 10) == Range{8, 10});
  CHECK(rows("train[:-2]", 10) == Range{0, 8});
  CHECK(rows("train[:99]", 10) == Range{0, 10});
  CHECK(rows("train[-99:1]", 10) == Range{0, 1});
  CHECK(rows("train[10%:25%]", 10) == Range{1, 3});  // 2.5 rounds away from zero
  CHECK(rows("train[-10%:]", 10) == Range{9, 10});
}

TEST_CASE("split: what is refused") {
  for (const char* text : {"", "[:3]", "train[", "train[]", "train[3]", "train[:3", "train[:3]x", "train[a:]",
                           "train[:3.5]", "train[:101%]", "train[1:2:3]", "train+test", "data/train"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(DatasetSplit::parse(text), Error);
  }
  CHECK_THROWS_WITH_AS(DatasetSplit::parse("train[5:5]").rows("data", 10),
                       "data: split 'train[5:5]' selects no row of 10", Error);
  CHECK_THROWS_AS(DatasetSplit::parse("train").rows("data", 0), Error);
}

TEST_CASE("split: the limit is a slice, unless there is one") {
  using Range = std::pair<std::int64_t, std::int64_t>;
  CHECK(with_limit(DatasetSplit::parse("train"), 4).rows("data", 10) == Range{0, 4});
  CHECK(with_limit(DatasetSplit::parse("train[2:9]"), 4).rows("data", 10) == Range{2, 9});
  CHECK(with_limit(DatasetSplit::parse("train"), std::nullopt).rows("data", 10) == Range{0, 10});
  CHECK_THROWS_WITH_AS(with_limit(DatasetSplit::parse("train"), 0),
                       "limit_dataset_samples: want 1 or more, got 0", Error);
  CHECK_THROWS_WITH_AS(with_limit(DatasetSplit::parse("train"), 0, "num_samples_limit"),
                       "num_samples_limit: want 1 or more, got 0", Error);
}
