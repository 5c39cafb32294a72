#include <doctest/doctest.h>

#include "data/json/json.h"
#include "tests/bad_input/refused.h"
#include "tests/support/paths.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

ProcessResult grid(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {program(), "grid"});
  return run_process(arguments);
}

}  // namespace

TEST_CASE("grid: rank lists of a grid and its expert view, keyed by the text given") {
  const auto run = grid({"tp=2,cp=1,dp=4,pp=2", "--view", "expert:expt_tp=1,ep=4,expt_dp=2,pp=2", "--shared",
                         "pp", "--groups", "dp", "--groups", "pp,tp", "--groups", "expert:ep", "--json"});
  REQUIRE(run.exit_code == 0);
  CHECK(parse_json(run.out, "output") ==
        parse_json(R"({"groups": {"dp": [[0,2,4,6],[1,3,5,7],[8,10,12,14],[9,11,13,15]],
                       "pp,tp": [[0,1,8,9],[2,3,10,11],[4,5,12,13],[6,7,14,15]],
                       "expert:ep": [[0,1,2,3],[4,5,6,7],[8,9,10,11],[12,13,14,15]]}})",
                   "expected"));
}

TEST_CASE("grid: without --groups each dimension, any names, an offset; text for people") {
  const auto json = grid({"rows=1,columns=2", "--offset", "3", "--json"});
  REQUIRE(json.exit_code == 0);
  CHECK(parse_json(json.out, "output") ==
        parse_json(R"({"groups": {"rows": [[3],[4]], "columns": [[3,4]]}})", "expected"));
  const auto text = grid({"tp=2,dp=2"});
  CHECK(text.out ==
        "grid tp=2,dp=2: ranks 0 to 3\ntp: 2 groups of 2\n  [0, 1]\n  [2, 3]\ndp: 2 groups of 2\n  [0, 2]\n  "
        "[1, 3]\n");
}

TEST_CASE("grid: groups of more ranks than anyone reads are summarised, or refused as JSON") {
  const auto text = grid({"tp=8,dp=2000000"});
  REQUIRE(text.exit_code == 0);
  CHECK(text.out.starts_with(
      "grid tp=8,dp=2000000: ranks 0 to 15999999\ntp: 2000000 groups of 8\n  [0, 1, 2, 3, "
      "4, 5, 6, 7]\n  [8, 9,"));
  CHECK(text.out.find("\n  ...\n  [15999992, 15999993, ") != std::string::npos);
  CHECK(text.out.ends_with("  [7, 15, 23, 31, 39, 47, 55, 63, ..., 15999999]\n"));
  CHECK(text.out.size() < 2000);
  const auto json = grid({"tp=8,dp=2000000", "--json"});
  CHECK(json.exit_code == 2);
  CHECK(json.out.empty());
  CHECK(json.err.find("--json lists every rank, here 32000000; want at most 4194304") != std::string::npos);
}

TEST_CASE("grid: mistakes end with exit code 2 and what is wrong") {
  const TestDir dir;
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> cases{
      {{}, {"dimensions is required"}},
      {{"tp"}, {"NAME=SIZE", "'tp'"}},
      {{"tp="}, {"integer", "'tp'"}},
      {{"tp=2x"}, {"'2x'"}},
      {{"tp=0"}, {"at least 1", "found 0"}},
      {{"tp=99999999999,dp=99999999999"}, {"more than 2147483647 ranks"}},
      {{"tp=2,tp=2"}, {"occurs twice"}},
      {{"tp=2", "--offset", "-1"}, {"offset of 0 or more"}},
      {{"tp=2,dp=2", "--world", "3"}, {"over sized", "the world has 3"}},
      {{"tp=2,dp=2", "--offset", "2", "--world", "5"}, {"over sized"}},
      {{"tp=2", "--groups", "dp"}, {"'dp' is not in view 'base'"}},
      {{"tp=2", "--groups", ""}, {"'' is not in view 'base'"}},
      {{"tp=2", "--groups", "e:tp"}, {"no view 'e'"}},
      {{"tp=2", "--view", "e"}, {"NAME:DIMENSION=SIZE"}},
      {{"tp=2", "--view", "e:ep=4"}, {"size 4", "size is 2"}},
      {{"tp=2", "--shared", "tp"}, {"0 --view and 1 --shared"}},
      {{"tp=2,pp=2", "--view", "e:pp=2,ep=2", "--shared", "pp"}, {"[0, 1] [2, 3]", "[0, 2] [1, 3]"}},
  };
  for (auto [arguments, parts] : cases) {
    CAPTURE(parts.front());
    arguments.insert(arguments.begin(), "grid");
    check_refused(dir.path(), arguments, parts);
  }
}
