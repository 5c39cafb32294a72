#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/error.h"
#include "tests/support/process.h"

using namespace nemocube;
using namespace nemocube::testing;

// Faults of one rank among several, as `test_comm --fault NAME` brings them about.

namespace {

std::string contents(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

/// Processes that were started with this argument and still live.
int processes_with(const std::string& argument) {
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc"))
    found += contents(entry.path() / "cmdline").find(argument) != std::string::npos;
  return found;
}

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

ProcessResult run_fault(const std::string& fault, const std::string& message) {
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  ::setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // of the ranks: Open MPI does not free all it allocates
  const std::string marker = cat("fault-test-of-process-", ::getpid(), "-", fault);
  const auto start = std::chrono::steady_clock::now();
  const ProcessResult run = run_process({NEMOCUBE_MPIRUN, "--oversubscribe", "--bind-to", "none", "-np", "3",
                                         std::filesystem::path(NEMOCUBE_BINARY).parent_path() / "test_comm",
                                         "--fault", fault, marker});
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(15));
  CAPTURE(run.err);
  CHECK(processes_with(marker) == 0);
  CHECK(occurrences(run.err, "error: ") == (message.empty() ? 0 : 1));
  // Before mpirun's report, which a line of dashes begins.
  if (!message.empty()) CHECK(run.err.find(message) < run.err.find("-----"));
  return run;
}

}  // namespace

TEST_CASE("faults: a rank that throws ends all ranks with its message, once") {
  CHECK(run_fault("throw", "[rank 2] error: no such thing: 'x'\n").exit_code == 2);
  CHECK(run_fault("all throw", "] error: the same on all ranks\n").exit_code == 2);
}

TEST_CASE("faults: a killed rank ends the others") {
  const ProcessResult run = run_fault("kill", "");
  CHECK(run.exit_code != 0);
  CHECK(run.err.find("signal 9") != std::string::npos);
}

TEST_CASE("faults: the watchdog names who waits, in what, and who has not come") {
  const ProcessResult run =
      run_fault("skip",
                " s in all_reduce number 3 (sum, f32, 1000000 elements) of group world; "
                "rank 2 has not come\n");
  CHECK(run.exit_code == 2);
  CHECK(run.err.find("waited 0.") != std::string::npos);
  CHECK(run_fault("late", "").exit_code == 0);
}

TEST_CASE("faults: calls that differ are named, the first rank that differs and both calls") {
  CHECK(run_fault(
            "differ",
            "calls of group world differ: rank 2 calls broadcast number 3 (from rank 0, f32, 2 elements), "
            "rank 0 calls broadcast number 3 (from rank 0, f32, 3 elements)\n")
            .exit_code == 2);
  CHECK(run_fault("skip, checked",
                  "differ: rank 2 calls barrier number 2, rank 0 calls all_reduce number 2 (max, f32, "
                  "3 elements)\n")
            .exit_code == 2);
  CHECK(run_fault("sizes",
                  "[rank 1] error: exchange number 0 (0 sent, 1 received) of group world: rank 0 of the "
                  "group sends 12 bytes where this rank wants 1048576\n")
            .exit_code == 2);
}
