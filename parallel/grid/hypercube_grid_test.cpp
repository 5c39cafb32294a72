#include "parallel/grid/hypercube_grid.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "core/error.h"

using namespace nemocube;

namespace {

using Dims = std::vector<GridDimension>;
using Names = std::vector<std::string>;

std::int64_t product(const Dims& dims) {
  std::int64_t size = 1;
  for (const auto& d : dims) size *= d.size;
  return size;
}
HypercubeGrid make(const Dims& dims, std::int64_t offset = 0) {
  return HypercubeGrid(dims, offset, offset + product(dims));
}
std::string lists(const HypercubeGrid& grid, const Names& subset, const std::string& view = "base") {
  return to_string(grid.groups(subset, view), 1000);
}

const Dims moe16{{"tp", 2}, {"cp", 1}, {"dp", 4}, {"pp", 2}};
const Dims experts16{{"expt_tp", 1}, {"ep", 4}, {"expt_dp", 2}, {"pp", 2}};

/// The definition, digit by digit: ranks that agree in all dimensions outside the subset.
std::vector<std::vector<int>> by_definition(const Dims& dims, int offset, const Names& subset) {
  std::map<std::vector<std::int64_t>, std::vector<int>> groups;  // keyed by outer coordinates, slowest first
  for (int rank = offset; rank < offset + product(dims); ++rank) {
    std::int64_t rest = rank - offset;
    std::vector<std::int64_t> outer;
    for (const auto& d : dims) {
      if (std::ranges::find(subset, d.name) == subset.end()) outer.insert(outer.begin(), rest % d.size);
      rest /= d.size;
    }
    groups[outer].push_back(rank);
  }
  std::vector<std::vector<int>> out;
  for (auto& [key, ranks] : groups) out.push_back(ranks);
  return out;
}

}  // namespace

TEST_CASE("grid: the worked lists of Megatron-LM's tests and documentation") {
  const auto tp_dp = make({{"tp", 2}, {"dp", 4}});
  CHECK(lists(tp_dp, {"tp"}) == "[0, 1] [2, 3] [4, 5] [6, 7]");
  const auto moved = make({{"tp", 2}, {"dp", 2}}, 4);
  CHECK(lists(moved, {"tp"}) == "[4, 5] [6, 7]");
  CHECK(lists(moved, {"dp"}) == "[4, 6] [5, 7]");
  CHECK(lists(moved, {"tp", "dp"}) == "[4, 5, 6, 7]");
  const auto one = make({{"tp", 1}, {"cp", 2}, {"dp", 4}});
  CHECK(lists(one, {"tp"}) == "[0] [1] [2] [3] [4] [5] [6] [7]");
  CHECK(lists(one, {"tp", "cp"}) == "[0, 1] [2, 3] [4, 5] [6, 7]");
  const auto abc = make({{"a", 2}, {"b", 2}, {"c", 2}});
  CHECK(lists(abc, {"a"}) == "[0, 1] [2, 3] [4, 5] [6, 7]");
  CHECK(lists(abc, {"c"}) == "[0, 4] [1, 5] [2, 6] [3, 7]");
  const auto tcd = make({{"tp", 2}, {"cp", 2}, {"dp", 2}});
  CHECK(lists(tcd, {"cp"}) == "[0, 2] [1, 3] [4, 6] [5, 7]");
  CHECK(lists(tcd, {"cp", "dp"}) == "[0, 2, 4, 6] [1, 3, 5, 7]");
  CHECK(lists(tcd, {"tp", "dp"}) == "[0, 1, 4, 5] [2, 3, 6, 7]");
  CHECK(lists(tcd, {"cp", "tp"}) == "[0, 1, 2, 3] [4, 5, 6, 7]");  // the caller's order does not count
  const auto p24 = make({{"tp", 2}, {"dp", 3}, {"pp", 4}});
  CHECK(lists(p24, {"dp"}) ==
        "[0, 2, 4] [1, 3, 5] [6, 8, 10] [7, 9, 11] [12, 14, 16] [13, 15, 17] [18, 20, 22] [19, 21, 23]");
  CHECK(lists(p24, {"pp"}) ==
        "[0, 6, 12, 18] [1, 7, 13, 19] [2, 8, 14, 20] [3, 9, 15, 21] [4, 10, 16, 22] [5, 11, 17, 23]");
  CHECK(lists(p24, {"tp", "pp"}) ==
        "[0, 1, 6, 7, 12, 13, 18, 19] [2, 3, 8, 9, 14, 15, 20, 21] [4, 5, 10, 11, 16, 17, 22, 23]");
  const auto pp_last = make({{"tp", 2}, {"cp", 1}, {"dp", 2}, {"pp", 4}});
  CHECK(lists(pp_last, {"dp"}) == "[0, 2] [1, 3] [4, 6] [5, 7] [8, 10] [9, 11] [12, 14] [13, 15]");
  CHECK(lists(pp_last, {"pp"}) == "[0, 4, 8, 12] [1, 5, 9, 13] [2, 6, 10, 14] [3, 7, 11, 15]");
  CHECK(lists(make({{"tp", 4}, {"cp", 2}}), {"cp"}) == "[0, 4] [1, 5] [2, 6] [3, 7]");
  const auto cp_first = make({{"cp", 2}, {"tp", 4}});
  CHECK(lists(cp_first, {"cp"}) == "[0, 1] [2, 3] [4, 5] [6, 7]");
  CHECK(lists(cp_first, {"tp"}) == "[0, 2, 4, 6] [1, 3, 5, 7]");
  const auto tcdp = make({{"tp", 2}, {"cp", 2}, {"dp", 2}, {"pp", 2}});
  CHECK(lists(tcdp, {"cp", "dp"}) == "[0, 2, 4, 6] [1, 3, 5, 7] [8, 10, 12, 14] [9, 11, 13, 15]");
  CHECK(lists(tcdp, {"tp", "cp"}) == "[0, 1, 2, 3] [4, 5, 6, 7] [8, 9, 10, 11] [12, 13, 14, 15]");
  const auto levels = make({{"l1", 2}, {"l2", 2}, {"l3", 4}});  // context parallel over nodes in levels
  CHECK(to_string(levels.groups({"l1"}), 4) == "[0, 1] [2, 3 ...");
  CHECK(to_string(levels.groups({"l2"}), 4) == "[0, 2] [1, 3 ...");
  CHECK(lists(levels, {"l3"}) == "[0, 4, 8, 12] [1, 5, 9, 13] [2, 6, 10, 14] [3, 7, 11, 15]");
  const auto large = make({{"a", 2}, {"b", 3}, {"c", 4}, {"d", 5}});
  CHECK(large.groups({"d"}).count() == 24);
  CHECK(large.groups({"d"}).ranks(0) == std::vector<int>{0, 24, 48, 72, 96});
  CHECK(large.groups({"d"}).ranks(1) == std::vector<int>{1, 25, 49, 73, 97});
}

TEST_CASE("grid: expert views, shared dimensions give the groups of the base") {
  auto grid = make(moe16);
  CHECK(lists(grid, {"dp"}) == "[0, 2, 4, 6] [1, 3, 5, 7] [8, 10, 12, 14] [9, 11, 13, 15]");
  CHECK(lists(grid, {"tp", "pp"}) == "[0, 1, 8, 9] [2, 3, 10, 11] [4, 5, 12, 13] [6, 7, 14, 15]");
  grid.add_view("expert", experts16, {"pp"});
  CHECK(lists(grid, {"ep"}, "expert") == "[0, 1, 2, 3] [4, 5, 6, 7] [8, 9, 10, 11] [12, 13, 14, 15]");
  CHECK(lists(grid, {"expt_dp"}, "expert") ==
        "[0, 4] [1, 5] [2, 6] [3, 7] [8, 12] [9, 13] [10, 14] [11, 15]");
  CHECK(lists(grid, {"ep", "expt_tp", "pp"}, "expert") ==
        "[0, 1, 2, 3, 8, 9, 10, 11] [4, 5, 6, 7, 12, 13, 14, 15]");
  CHECK(grid.coordinates(13) == std::vector<std::int64_t>{1, 0, 2, 1});
  CHECK(grid.coordinates(13, "expert") == std::vector<std::int64_t>{0, 1, 1, 1});
  CHECK(grid.groups({"pp"}, "expert").name() == "pp");
  CHECK(grid.groups({"pp"}, "expert") == grid.groups({"pp"}));
  CHECK(grid.groups({"dp", "tp"}).name() == "dp-tp");
  CHECK(grid.groups({"ep", "pp"}, "expert").name() == "expert:pp-ep");

  auto even = make({{"tp", 2}, {"cp", 2}, {"dp", 2}, {"pp", 2}});
  even.add_view("expert", {{"expt_tp", 2}, {"ep", 2}, {"expt_dp", 2}, {"pp", 2}}, {"pp"});
  CHECK(lists(even, {"ep"}, "expert") == "[0, 2] [1, 3] [4, 6] [5, 7] [8, 10] [9, 11] [12, 14] [13, 15]");
  CHECK(lists(even, {"expt_dp"}, "expert") ==
        "[0, 4] [1, 5] [2, 6] [3, 7] [8, 12] [9, 13] [10, 14] [11, 15]");
  // The same members under another name are another set of groups: they may be used at the same time.
  CHECK(even.groups({"tp"}) == even.groups({"expt_tp"}, "expert"));
  CHECK(even.groups({"tp"}).name() != even.groups({"expt_tp"}, "expert").name());
}

TEST_CASE("grid: groups by definition, for many shapes; place and group of each rank") {
  const std::vector<Dims> shapes{{{"a", 1}},
                                 {{"a", 5}},
                                 {{"a", 2}, {"b", 3}, {"c", 2}},
                                 {{"a", 3}, {"b", 1}, {"c", 2}, {"d", 2}},
                                 {{"a", 1}, {"b", 4}, {"c", 1}, {"d", 3}, {"e", 2}}};
  for (const Dims& dims : shapes)
    for (const int offset : {0, 7})
      for (unsigned bits = 1; bits < 1u << dims.size(); ++bits) {
        Names subset;
        for (std::size_t i = 0; i < dims.size(); ++i)
          if (bits >> i & 1)
            subset.insert(subset.begin(), dims[i].name);  // slowest first: order must not count
        const auto grid = make(dims, offset);
        const RankGroups groups = grid.groups(subset);
        const auto want = by_definition(dims, offset, subset);
        REQUIRE(groups.count() == static_cast<std::int64_t>(want.size()));
        std::set<int> seen;
        for (std::int64_t g = 0; g < groups.count(); ++g) {
          const auto ranks = groups.ranks(g);
          CHECK(ranks == want[static_cast<std::size_t>(g)]);
          CHECK(std::ranges::is_sorted(ranks));
          for (std::size_t i = 0; i < ranks.size(); ++i) {
            CHECK(seen.insert(ranks[i]).second);
            CHECK(groups.group_of(ranks[i]) == g);
            CHECK(groups.position_of(ranks[i]) == static_cast<std::int64_t>(i));
          }
        }
        CHECK(static_cast<int>(seen.size()) == grid.size());
      }
}

TEST_CASE("grid: every mistake is named") {
  const auto refused = [](const Dims& dims, std::int64_t offset, std::int64_t world, const char* part) {
    CAPTURE(part);
    CHECK_THROWS_WITH_AS(HypercubeGrid(dims, offset, world), doctest::Contains(part), Error);
  };
  refused({}, 0, 8, "at least one dimension");
  refused({{"tp", 2}, {"", 2}}, 0, 8, "empty name");
  refused({{"tp", 2}, {"tp", 2}}, 0, 8, "'tp' occurs twice");
  refused({{"tp", 0}}, 0, 8, "at least 1 for dimension 'tp', found 0");
  refused({{"tp", -4}}, 0, 8, "found -4");
  refused({{"tp", 65536}, {"dp", 65536}}, 0, 8, "more than 2147483647 ranks");
  refused({{"tp", std::numeric_limits<std::int64_t>::max()}}, 0, 8, "more than 2147483647 ranks");
  refused({{"tp", 2}}, -1, 8, "offset of 0 or more, found -1");
  refused({{"tp", 2}, {"dp", 2}}, 5, 8,
          "tp=2,dp=2 is over sized: 4 ranks from offset 5, but the world has 8");
  refused({{"tp", 2}}, std::numeric_limits<std::int64_t>::max(), 8, "over sized");
  refused({{"tp", 1}}, 0, 0, "world of 1 to");

  auto grid = make({{"tp", 2}, {"dp", 2}, {"pp", 2}});
  const auto no_view = [&](const std::string& name, const Dims& dims, const Names& shared, const char* part) {
    CAPTURE(part);
    CHECK_THROWS_WITH_AS(grid.add_view(name, dims, shared), doctest::Contains(part), Error);
    CHECK_THROWS_AS(grid.groups({"pp"}, "x"), Error);  // a refused view is not added
  };
  no_view("x", {{"ep", 4}}, {}, "ep=4 has size 4, but the grid size is 8");
  no_view("x", {{"ep", 4}, {"ep", 2}}, {}, "'ep' occurs twice");
  no_view("x", {{"ep", 8}, {"pp", 0}}, {}, "found 0");
  no_view("", {{"ep", 8}}, {}, "needs a name");
  no_view("base", {{"ep", 8}}, {}, "the name is taken");
  no_view("x", {{"ep", 4}, {"pp", 2}}, {"pp", "pp"}, "'pp' is named twice");
  no_view("x", {{"ep", 4}, {"pp", 2}}, {"cp"}, "'cp' is not in view 'base'");
  no_view("x", {{"ep", 4}, {"pp", 2}}, {"dp"}, "'dp' is not in ep=4,pp=2");
  no_view("x", {{"pp", 2}, {"ep", 4}}, {"pp"},
          "found [0, 1] [2, 3] [4, 5] [6, 7] here and [0, 4] [1, 5] [2, 6] [3, 7] in view 'base'");
  grid.add_view("expert", {{"expt_tp", 2}, {"ep", 2}, {"pp", 2}}, {"pp"});
  CHECK(lists(grid, {"expt_tp", "ep"}, "expert") == "[0, 1, 2, 3] [4, 5, 6, 7]");
  CHECK_THROWS_WITH_AS(grid.add_view("expert", {{"ep", 8}}), doctest::Contains("taken"), Error);
  const auto no_groups = [&](const Names& subset, const std::string& view, const char* part) {
    CAPTURE(part);
    CHECK_THROWS_WITH_AS(grid.groups(subset, view), doctest::Contains(part), Error);
  };
  no_groups({}, "base", "at least one dimension");
  no_groups({"tp", "tp"}, "base", "'tp' is named twice");
  no_groups({"ep"}, "base", "'ep' is not in view 'base' (tp=2,dp=2,pp=2)");
  no_groups({"ep"}, "nope", "no view 'nope' (there are: base, expert)");
  CHECK_THROWS_WITH_AS(grid.coordinates(8), doctest::Contains("rank 8"), Error);
}

TEST_CASE("grid: groups of a grid as large as MPI allows cost nothing until they are listed") {
  const HypercubeGrid grid({{"tp", 46340}, {"dp", 46340}}, 0, 2147483647);
  CHECK(grid.groups({"dp"}).rank(46339, 46339) == 46340 * 46340 - 1);
  CHECK(to_string(grid.groups({"tp", "dp"}), 3) == "[0, 1, 2 ...");
}
