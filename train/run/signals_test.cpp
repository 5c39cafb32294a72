#include "train/run/signals.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <functional>
#include <string>

using namespace nemocube;

namespace {

struct Ended {
  int status = 0;  // as waitpid gives it
  std::string err;
};

/// Runs `body` in a process of its own, which ends with the number that `body` returns.
Ended in_child(const std::function<int()>& body) {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) std::signal(number, SIG_DFL);
    ::_exit(body());
  }
  ::close(ends[1]);
  Ended ended;
  std::array<char, 256> part;
  for (ssize_t n = 0; (n = ::read(ends[0], part.data(), part.size())) > 0;)
    ended.err.append(part.data(), static_cast<std::size_t>(n));
  ::close(ends[0]);
  REQUIRE(::waitpid(child, &ended.status, 0) == child);
  return ended;
}

}  // namespace

TEST_CASE("signals: the first is remembered, the second ends the process, and both say what happens") {
  for (const int number : {SIGINT, SIGTERM}) {
    const Ended ended = in_child([number] {
      SignalWatch watch({SIGINT, SIGTERM}, "ends after this step");
      watch.set_second_text("nothing is lost");
      watch.set_second_text("steps 3 to 5 are lost");
      if (watch.received() != 0) return 1;
      std::raise(SIGINT);
      if (watch.received() != SIGINT) return 2;
      for (const int late : {SIGHUP, SIGPIPE, SIGHUP, SIGPIPE}) std::raise(late);
      if (watch.received() != SIGINT) return 3;
      std::raise(number);
      return 4;
    });
    CHECK(WIFSIGNALED(ended.status));
    CHECK(WTERMSIG(ended.status) == number);
    CHECK(ended.err == "ends after this step\nsteps 3 to 5 are lost\n");
  }
}

TEST_CASE("signals: the end of the terminal and of the reader of messages are watched unless ignored") {
  for (const int number : {SIGHUP, SIGPIPE}) {
    const Ended ended = in_child([number] {
      const SignalWatch watch({SIGINT}, "");
      std::raise(number);
      return watch.received() == number ? 0 : 1;
    });
    CHECK(WIFEXITED(ended.status));
    CHECK(WEXITSTATUS(ended.status) == 0);
    const Ended under_nohup = in_child([number] {
      std::signal(number, SIG_IGN);
      const SignalWatch watch({SIGINT, number}, "");
      std::raise(number);
      return watch.received();
    });
    CHECK(WIFEXITED(under_nohup.status));
    CHECK(WEXITSTATUS(under_nohup.status) == 0);
  }
}
