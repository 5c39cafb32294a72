#include "parallel/tensor_parallel/install.h"

#include <doctest/doctest.h>

using namespace nemocube;

TEST_CASE("tensor parallel: the rows of each sequence that a rank has") {
  const auto offsets = [](std::vector<std::int64_t> lengths, std::int64_t ranks, std::int64_t rank) {
    return even_part_of_rows(Sequences::of_lengths(lengths), ranks, rank).offsets();
  };
  using Offsets = std::vector<std::int64_t>;
  // 11 rows: 4, 4 and 3.
  CHECK(offsets({5, 0, 6}, 3, 0) == Offsets{0, 4, 4, 4});
  CHECK(offsets({5, 0, 6}, 3, 1) == Offsets{0, 1, 1, 4});
  CHECK(offsets({5, 0, 6}, 3, 2) == Offsets{0, 0, 0, 3});
  CHECK(offsets({5, 0, 6}, 1, 0) == Offsets{0, 5, 5, 11});
  CHECK(offsets({1}, 2, 1) == Offsets{0, 0});
  CHECK(offsets({}, 2, 1) == Offsets{0});
}
