#include "train/recipe/key_list.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "data/json/test_dir.h"
#include "tests/support/paths.h"

using namespace nemocube::recipe;

TEST_CASE("docs/recipe.md holds the table of the keys that there are") {
  const std::string page = nemocube::testing::slurp(nemocube::testing::source_dir() / "docs" / "recipe.md");
  const auto at = page.find("| key |");
  REQUIRE(at != std::string::npos);
  CHECK_MESSAGE(
      page.substr(at) == key_table(),
      "docs/recipe.md differs from the code; make its table new with: nemocube inspect --recipe-keys");
}

TEST_CASE("every key is listed once, with type and meaning") {
  const auto& paths = known_paths();
  for (const std::string& path : paths) CHECK_MESSAGE(std::ranges::count(paths, path) == 1, path);
  for (const char* path :
       {"seed", "optimizer", "optimizer.lr", "optimizer.param_group_overrides.N.pattern", "dataset.seq_len",
        "dataset.fp8", "compile", "compile.mode", "model.backend.te_fp8", "wandb", "benchmark.peak_tflops"})
    CHECK_MESSAGE(std::ranges::count(paths, path) == 1, path);
  CHECK(key_table().find("|  |  |") == std::string::npos);
  CHECK(key_table().find("| `optimizer.eps` | a number from 1e-30 to 1 | `1.0e-08` |") != std::string::npos);
}
