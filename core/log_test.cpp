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

TEST_CASE(
    "log: the level stands in front where it is not info, the rank where there are several, info from rank "
    "0") {
  const std::string text = captured([] {
    log_info("one ", 1);
    log_warning("two");
    set_log_rank(17, 32);
    log_info("not of rank 17");
    log_warning("three");
    write_log(LogLevel::error, "four");
    set_log_rank(0, 2);
    log_info("five");
    set_log_rank(0, 1);
  });
  CHECK(text == "one 1\nwarning: two\n[rank 17] warning: three\n[rank 17] error: four\n[rank 0] five\n");
}

TEST_CASE("log: no terminal command in a text reaches the terminal") {
  const std::string text = captured([] {
    log_info("a file \x1b[2J\x07 \xff of\ntwo lines, 'é'\n  and a line of the message");
    set_status_line("step\x1b]0;x\x07");
    set_status_line("");
  });
  CHECK(text ==
        "a file \\u001b[2J\\u0007 \\xff of\\ntwo lines, 'é'\n  and a line of the message\n"
        "\r\033[Kstep\\u001b]0;x\\u0007\r\033[K");
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
  CHECK(text == "warning: yes\ndebug: also\n");
  CHECK(parse_log_level("warning") == LogLevel::warning);
  CHECK_THROWS_WITH_AS(parse_log_level("loud"), doctest::Contains("'loud'"), Error);
}

TEST_CASE("log: messages appear above the status line, which stays or goes as asked") {
  const std::string erase = "\r\033[K";
  const std::string kept = captured([] {
    set_status_line("step 1");
    log_info("saved");
    set_status_line("step 2");
    CHECK(status_line() == "step 2");
    keep_status_line();
    log_info("done");
    keep_status_line();
  });
  CHECK(kept == erase + "step 1" + erase + "saved\nstep 1" + erase + "step 2\ndone\n");
  const std::string removed = captured([] {
    set_status_line("");
    set_status_line("x");
    write_log_in_signal_handler("stop\n");
    set_status_line("");
    write_log_in_signal_handler("again\n");
    CHECK(status_line().empty());
  });
  CHECK(removed == erase + "x" + erase + "stop\n" + erase + "again\n");
}

TEST_CASE("log: a status line keeps whole fields as far as the columns go") {
  CHECK(fitting_fields("one  two  three", 15) == "one  two  three");
  CHECK(fitting_fields("one  two  three", 14) == "one  two");
  CHECK(fitting_fields("one  two  three", 8) == "one  two");
  CHECK(fitting_fields("one  two  three", 7) == "one");
  CHECK(fitting_fields("one  two  three", 2) == "on");
  CHECK(fitting_fields("", 0).empty());
}

TEST_CASE("log: counts with their nouns") {
  CHECK(counted(0, "step") == "0 steps");
  CHECK(counted(1, "step") == "1 step");
  CHECK(counted(2, "step") == "2 steps");
  CHECK(counted(1, "batch", "batches") == "1 batch");
  CHECK(counted(3, "batch", "batches") == "3 batches");
}
