#include "core/range.h"

#include <doctest/doctest.h>

using namespace nemocube;

namespace {

using Sizes = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("range: even parts, of which the first ones have one entry more") {
  CHECK(even_sizes(7, 3) == Sizes{3, 2, 2});
  CHECK(even_sizes(2, 4) == Sizes{1, 1, 0, 0});
  CHECK(even_sizes(0, 2) == Sizes{0, 0});
  CHECK(even_sizes(6, 3) == Sizes{2, 2, 2});
  CHECK(even_sizes(5, 1) == Sizes{5});
  CHECK(even_part({10, 17}, 3, 0) == Range{10, 13});
  CHECK(even_part({10, 17}, 3, 2) == Range{15, 17});
  CHECK(even_part({4, 6}, 4, 3) == Range{6, 6});
  CHECK(even_begin(7, 3, 0) == 0);
  CHECK(even_begin(7, 3, 1) == 3);
  CHECK(even_begin(7, 3, 3) == 7);
}

TEST_CASE("range: even parts follow one another, and their sizes descend by one at most") {
  for (std::int64_t size = 0; size < 40; ++size)
    for (std::int64_t parts = 1; parts < 10; ++parts) {
      std::int64_t end = 5, longer = 0;
      for (std::int64_t i = 0; i < parts; ++i) {
        const Range part = even_part({5, 5 + size}, parts, i);
        CHECK(part.begin == end);
        CHECK((part.size() == size / parts || part.size() == size / parts + 1));
        if (part.size() > size / parts) CHECK(longer++ == i);
        end = part.end;
      }
      CHECK(end == 5 + size);
    }
}
