#include "train/recipe/words.h"

#include <doctest/doctest.h>

#include <vector>

using namespace nemocube::recipe;

TEST_CASE("edit distance counts insertions, deletions, replacements, swaps") {
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("abc", "") == 3);
  CHECK(edit_distance("max_step", "max_steps") == 1);
  CHECK(edit_distance("max_setps", "max_steps") == 1);
  CHECK(edit_distance("kitten", "sitting") == 3);
  const std::vector<std::string> words{"max_steps", "num_epochs"};
  CHECK(nearest("max-stesp", words) == "max_steps");
  CHECK(nearest("x", {}) == "");
  const std::vector<std::string> near{"lo", "lt", "lr_min", "l"};
  CHECK(nearest("lr", near) == "lo");  // the first at distance 1
}
