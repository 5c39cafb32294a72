#include <doctest/doctest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

/// The start script: what it refuses.
namespace {

struct Outcome {
  int status;
  std::string text;  ///< standard output and error
};

Outcome start(const std::string& arguments) {
  FILE* const pipe = popen(("'" CUDA_EMULATOR_RUN "' " + arguments + " 2>&1").c_str(), "r");
  REQUIRE(pipe);
  Outcome outcome;
  std::array<char, 4096> buffer;
  for (std::size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    outcome.text.append(buffer.data(), n);
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

void check_refused(const std::string& arguments, const std::string& text) {
  const Outcome outcome = start(arguments);
  CAPTURE(arguments);
  CAPTURE(outcome.text);
  CHECK(outcome.status == 2);
  CHECK(outcome.text.find(text) != std::string::npos);
}

}  // namespace

TEST_CASE("run: wrong options end before the program starts") {
  check_refused("", "no program given");
  check_refused("--sed 3 echo started", "unknown option '--sed'");
  check_refused("--seed x echo started", "--seed needs a number, not 'x'");
  check_refused("--seed", "--seed needs a value");
  check_refused("--memory 3T echo started", "--memory needs a number");
  check_refused("--counters /nowhere/c.json echo started", "cannot write the counters to /nowhere/c.json");
  const Outcome help = start("--help");
  CHECK(help.status == 0);
  CHECK(help.text.find("--no-check") != std::string::npos);
}

TEST_CASE("run: a program of the static runtime is told to use the shared one") {
  check_refused("'" CUDA_EMULATOR_STATIC_PROGRAM "'", "nvcc --cudart shared");
}

TEST_CASE("run: the program's own exit status passes") { CHECK(start("false").status == 1); }
