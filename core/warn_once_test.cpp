#include "core/warn_once.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace nemocube;

TEST_CASE("warn_once: one warning for each subject") {
  std::vector<std::string> texts;
  set_log_listener([&](LogLevel, const std::string& text) { texts.push_back(text); });
  for (int i = 0; i < 3; ++i) {
    warn_once("subject a of this test", "a ", i);
    warn_once("subject b of this test", "b ", i);
  }
  set_log_listener({});
  CHECK(texts == std::vector<std::string>{"a 0", "b 0"});
  CHECK(first_mention("subject c of this test"));
  CHECK_FALSE(first_mention("subject c of this test"));
}
