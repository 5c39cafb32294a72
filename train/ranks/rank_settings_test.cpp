#include "train/ranks/rank_settings.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <algorithm>

using namespace nemocube;

namespace {

/// Ranks with one setting, which have these values.
std::vector<std::vector<RankSetting>> ranks_with(const std::vector<std::string>& values,
                                                 bool of_machine = false) {
  std::vector<std::vector<RankSetting>> ranks;
  for (const std::string& value : values) ranks.push_back({{"X", value, of_machine}});
  return ranks;
}

std::string differing(const std::vector<std::string>& values) {
  return differing_settings(ranks_with(values), false);
}

}  // namespace

TEST_CASE("rank settings: a difference names the setting, the values and the ranks") {
  CHECK(differing({"'2'", "'2'"}) == "");
  CHECK(differing({"none", "'2'", "none", "none"}) ==
        "X is not the same on all ranks: rank 1 has '2'; ranks 0, 2 and 3 have none");
  CHECK(differing({"a", "b"}) == "X is not the same on all ranks: rank 0 has a; rank 1 has b");
  CHECK(differing({"a", "a", "a", "b", "a", "a", "b"}) ==
        "X is not the same on all ranks: ranks 3 and 6 have b; ranks 0 to 2, 4 and 5 have a");
  std::vector<std::string> many;
  for (int i = 0; i < 20; ++i) many.push_back(std::to_string(i));
  CHECK(differing(many).ends_with("rank 7 has 7; 12 more values"));
}

TEST_CASE("rank settings: those of machines may differ where the recipe allows it") {
  const auto ranks = ranks_with({"AVX2", "AVX-512"}, true);
  CHECK(differing_settings(ranks, true) == "");
  CHECK(differing_settings(ranks, false) ==
        "X is not the same on all ranks: rank 0 has AVX2; rank 1 has AVX-512\n"
        "  debug.allow_differing_instruction_sets: true lets machines of several kinds work together");
  CHECK(differing_settings(ranks_with({"a", "b"}), true) != "");
  CHECK(differing_settings(ranks, {}) ==  // no recipe that could have the key
        "X is not the same on all ranks: rank 0 has AVX2; rank 1 has AVX-512");
}

TEST_CASE("rank settings: this process has a value for each") {
  const char* name = "NEMOTRONH_TP_PARALLEL_CE_IMPL";
  const auto value = [&] {
    const auto all = settings_of_this_rank();
    for (const RankSetting& s : all) CHECK(!s.value.empty());
    const auto at =
        std::ranges::find(all, std::string("the environment variable ") + name, &RankSetting::name);
    REQUIRE(at != all.end());
    CHECK_FALSE(at->of_machine);
    return at->value;
  };
  CHECK(value() == "none");
  ::setenv(name, "off", 1);
  CHECK(value() == "'off'");
  ::unsetenv(name);
}
