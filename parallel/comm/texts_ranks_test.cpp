#include "parallel/comm/texts.h"

#include <doctest/doctest.h>

#include "tests/support/ranks.h"

using namespace nemocube;

TEST_CASE("texts: of one rank and of all ranks, of any length") {
  Communicator& group = nemocube::testing::test_world().communicator();
  const auto text = [](int rank) {
    return std::string(static_cast<std::size_t>(rank % 3) * 5000, static_cast<char>('a' + rank));
  };
  for (int root = 0; root < group.size(); ++root)
    CHECK(broadcast_text(group, text(group.rank()), root) == text(root));
  const auto all = all_gather_texts(group, text(group.rank()));
  REQUIRE(std::ssize(all) == group.size());
  for (int r = 0; r < group.size(); ++r) CHECK(all[static_cast<std::size_t>(r)] == text(r));
}
