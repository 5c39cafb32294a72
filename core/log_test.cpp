#include "core/log.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <functional>

using namespace nemocube;

namespace {

/// What `fn` writes to standard error.
std::string captured(const std::function<void()>& fn) {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  const int saved = ::dup(STDERR_FILENO);
  ::dup2(ends[1], STDERR_FILENO);
  fn();
  ::dup2(saved, STDERR_FILENO);
  ::close(saved);
  ::close(ends[1]);
  std::string text(4096, '\0');
  const ssize_t n = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  text.resize(static_cast<std::size_t>(n > 0 ? n : 0));
  return text;
}

}  // namespace

TEST_CASE("log: the rank stands in front, the level where it is not info") {
  const std::string text = captured([] {
    log_info("one ", 1);
    set_log_rank(17);
    log_info("two");
    log_warning("three");
    write_log(LogLevel::error, "four");
    set_log_rank(0);
  });
  CHECK(text == "[rank 0] one 1\n[rank 17] two\n[rank 17] warning: three\n[rank 17] error: four\n");
}

TEST_CASE("log: messages below the level are dropped") {
  const std::string text = captured([] {
    log_debug("no");
    set_log_level(LogLevel::warning);
    log_info("no");
    log_warning("yes");
    set_log_level(LogLevel::debug);
    log_debug("also");
    set_log_level(LogLevel::info);
  });
  CHECK(text == "[rank 0] warning: yes\n[rank 0] debug: also\n");
  CHECK(parse_log_level("warning") == LogLevel::warning);
  CHECK_THROWS_WITH_AS(parse_log_level("loud"), doctest::Contains("'loud'"), Error);
}
