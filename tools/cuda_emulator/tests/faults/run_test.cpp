#include <doctest/doctest.h>

#include <string>

#include "tests/outcome.h"

/// The start script: what it refuses.
namespace {

Outcome start(const std::string& arguments) { return outcome_of("'" CUDA_EMULATOR_RUN "' " + arguments); }

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
  check_refused("--l2 1MB echo started", "--l2 needs a number");
  check_refused("--counters /nowhere/c.json echo started", "cannot write the counters to /nowhere/c.json");
  const Outcome help = start("--help");
  CHECK(help.status == 0);
  CHECK(help.text.find("--no-check") != std::string::npos);
}

TEST_CASE("run: a program of the static runtime is told to use the shared one") {
  check_refused("'" CUDA_EMULATOR_STATIC_PROGRAM "'", "nvcc --cudart shared");
}

TEST_CASE("run: the program's own exit status passes") { CHECK(start("false").status == 1); }

TEST_CASE("run: counters go to a file and, as a table, to standard error") {
  const std::string file = std::string(std::tmpnam(nullptr)) + ".json";
  const Outcome outcome =
      start("--counters " + file + " '" CUDA_EMULATOR_FAULTS "' missing_syncthreads clean");
  CAPTURE(outcome.text);
  CHECK(outcome.status == 0);
  CHECK(outcome.text.find("launches") != std::string::npos);
  CHECK(outcome.text.find("reversed(int*, bool)") != std::string::npos);
  CHECK(std::remove(file.c_str()) == 0);
}
