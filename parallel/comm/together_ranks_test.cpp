#include "parallel/comm/together.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <new>
#include <stdexcept>

#include "core/error.h"
#include "tests/support/ranks.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

Communicator* world() { return &test_world().communicator(); }

// "Error: TEXT" or "logic_error: TEXT"; "none" where nothing is thrown.
std::string thrown_by(const auto& fn) {
  try {
    fn();
  } catch (const std::logic_error& error) {
    return cat("logic_error: ", error.what());
  } catch (const Error& error) {
    return cat("Error: ", error.what());
  }
  return "none";
}

}  // namespace

TEST_CASE("together: texts of all ranks") {
  const int rank = test_world().rank(), ranks = test_world().size();
  const auto text = [](int r) {
    return r % 2 == 0 ? std::string() : std::string(static_cast<std::size_t>(r) * 3000, 'a');
  };
  const std::vector<std::string> all = gather_texts(world(), text(rank));
  REQUIRE(all.size() == static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) CHECK(all[static_cast<std::size_t>(r)] == text(r));
  CHECK(gather_texts(world(), "") == std::vector<std::string>(static_cast<std::size_t>(ranks)));
  for (const std::string& sent : {std::string(), std::string("a\0b", 3), std::string(10000, 'x')})
    CHECK(broadcast_text(world(), rank == 0 ? sent : "another") == sent);
  CHECK(largest(world(), rank == ranks - 1 ? -3 : -5) == -3);
  CHECK(largest(nullptr, 7) == 7);
  CHECK(gather_texts(nullptr, "alone") == std::vector<std::string>{"alone"});
  CHECK(broadcast_text(nullptr, "alone") == "alone");
}

TEST_CASE("together: a rank that fails throws its own exception, the others name it") {
  const int rank = test_world().rank(), ranks = test_world().size(), last = ranks - 1;
  int done = 0;
  CHECK(thrown_by([&] { together(world(), [&] { ++done; }); }) == "none");
  CHECK(done == 1);
  CHECK(thrown_by([&] { together(world(), [&] { require(rank != last, "no space"); }); }) ==
        (rank == last ? "Error: no space" : cat("Error: rank ", last, ": no space")));
  CHECK(thrown_by([&] { together(world(), [&] { expect(rank != last, "no promise"); }); }) ==
        (rank == last ? "logic_error: internal error: no promise"
                      : cat("logic_error: rank ", last, ": internal error: no promise")));
  // Of several, others hear of the first.
  const int first = std::min(1, last);
  CHECK(thrown_by([&] {
          together(world(), [&] { require(rank < first, "rank ", rank, " has no space"); });
        }) == (rank < first ? cat("Error: rank ", first, ": rank ", first, " has no space")
                            : cat("Error: rank ", rank, " has no space")));
  CHECK_THROWS_AS(together(nullptr, [] { throw std::bad_alloc(); }), std::bad_alloc);
}

TEST_CASE("together: all ranks get the result of rank 0, or its failure") {
  const int rank = test_world().rank();
  int calls = 0;
  CHECK(text_of_rank_0(world(), [&] {
          ++calls;
          return cat("by ", rank);
        }) == "by 0");
  CHECK(calls == (rank == 0));
  CHECK(text_of_rank_0(world(), [] { return std::string(); }).empty());
  CHECK(thrown_by([&] { text_of_rank_0(world(), []() -> std::string { fail("not found"); }); }) ==
        "Error: not found");
  CHECK(thrown_by([&] { on_rank_0(world(), [] { expect(false, "no promise"); }); }) ==
        "logic_error: internal error: no promise");
  CHECK(thrown_by([&] { on_rank_0(world(), [&] { ++calls; }); }) == "none");
  CHECK(calls == 2 * (rank == 0));
}
