#include "core/version.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

using namespace nemocube;

TEST_CASE("version: a number of three parts, then at most a commit of hexadecimal digits") {
  const std::string text(version());
  CAPTURE(text);
  const std::size_t number = text.find_first_not_of("0123456789.");
  CHECK(std::count(text.begin(), text.begin() + std::min(number, text.size()), '.') == 2);
  if (number == std::string::npos) return;  // built without git
  REQUIRE(text.substr(number, 2) == " (");
  REQUIRE(text.back() == ')');
  std::string commit = text.substr(number + 2, text.size() - number - 3);
  if (commit.ends_with("-dirty")) commit.resize(commit.size() - 6);
  CHECK(commit.size() >= 7);
  CHECK(commit.find_first_not_of("0123456789abcdef") == std::string::npos);
}
