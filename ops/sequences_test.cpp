#include "ops/sequences.h"

#include <doctest/doctest.h>

using namespace nemocube;

using Offsets = std::vector<std::int64_t>;

TEST_CASE("sequences: from counts, lengths and ids") {
  CHECK(Sequences::uniform(3, 4).offsets == Offsets{0, 4, 8, 12});
  CHECK(Sequences::uniform(0, 4).offsets == Offsets{0});
  CHECK(Sequences::of_lengths(Offsets{2, 0, 3}).offsets == Offsets{0, 2, 2, 5});
  CHECK(Sequences::of_lengths(Offsets{2, 0, 3}).longest() == 3);
  CHECK(Sequences::from_ids(Offsets{}).offsets == Offsets{0});
  CHECK(Sequences::from_ids(Offsets{7}).offsets == Offsets{0, 1});
  CHECK(Sequences::from_ids(Offsets{1, 1, 2, 1, 1, 1}).offsets == Offsets{0, 2, 3, 6});
  const Sequences packed = Sequences::from_ids(Offsets{5, 5, 5, 6});
  CHECK(packed.count() == 2);
  CHECK(packed.tokens() == 4);
  CHECK(packed.begin(1) == 3);
  CHECK(packed.length(0) == 3);
}

TEST_CASE("sequences: offsets that do not ascend to the number of tokens are refused") {
  CHECK_NOTHROW(Sequences::uniform(2, 3).check("x", 6));
  CHECK_THROWS_WITH_AS(Sequences::uniform(2, 3).check("x", 7), doctest::Contains("x: "), Error);
  CHECK_THROWS_AS((Sequences{{0, 3, 2, 4}}.check("x", 4)), Error);
  CHECK_THROWS_AS((Sequences{{1, 4}}.check("x", 4)), Error);
  CHECK_THROWS_AS((Sequences{{}}.check("x", 0)), Error);
}
