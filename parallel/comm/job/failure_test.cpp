#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "core/error.h"
#include "tests/support/devices.h"
#include "tests/support/mpirun.h"
#include "tests/support/occurrences.h"
#include "tests/support/paths.h"
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

/// Runs mpirun. Where ranks have died in MPI_Finalize, the mpirun of Open MPI 4.1 and 5.0 now and then fails
/// at its own end, with all ranks gone: its main thread, in PMIx_server_finalize, and the thread of PMIx wait
/// for each other for ever, or the main thread crashes. Then the job runs again.
ProcessResult run_mpirun(const std::vector<std::string>& command) {
  using namespace std::chrono_literals;
  for (int attempt = 1; attempt <= 3; ++attempt) {
    Process job(command);
    const auto start = std::chrono::steady_clock::now();
    const auto runs = [&] { return std::chrono::steady_clock::now() - start; };
    while (is_alive(job.pid()) && (runs() < 30s || std::ranges::any_of(children_of(job.pid()), is_alive)))
      std::this_thread::sleep_for(20ms);
    if (is_alive(job.pid())) {
      MESSAGE("mpirun hangs although all of its ranks have ended; the job runs again: ", command.back());
      continue;
    }
    CHECK(runs() < 15s);
    ProcessResult result = job.wait();
    // Of a rank that has crashed mpirun says "exited on signal 11".
    if (result.exit_code != 128 + SIGSEGV || result.err.find("on signal 11") != std::string::npos)
      return result;
    MESSAGE("mpirun crashes at its own end; the job runs again: ", command.back());
  }
  FAIL("mpirun hung or crashed three times");
  return {};
}

/// A message for run_fault(): mpirun may end the ranks before one of them has noticed.
constexpr const char* at_most_one = "at most one, whatever it says";

ProcessResult run_fault(const std::string& fault, const std::string& message,
                        const std::vector<std::string>& options = {}) {
  ::setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // of the ranks: Open MPI does not free all it allocates
  const std::string marker = cat("fault-test-of-process-", ::getpid(), "-", fault);
  const auto program = build_dir() / "test_comm";
  const ProcessResult run =
      run_mpirun(mpirun(3, plus(options, {program.string(), "--fault", fault, marker})));
  CAPTURE(run.err);
  CHECK(processes_with(marker) == 0);
  if (message == at_most_one) {
    CHECK(occurrences(run.err, "] error: ") <= 1);
    return run;
  }
  CHECK(occurrences(run.err, "] error: ") == (message.empty() ? 0 : 1));
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
  const ProcessResult late = run_fault("late, and longer than files take",
                                       "; rank 0 has not come (while files are written or read, the limit is "
                                       "0.2 s and 0.3 s for 3.0 MB at 10.0 MB/s)\n");
  CHECK(late.exit_code == 2);
}

TEST_CASE("faults: the watchdog covers the start of MPI, the making of groups and the end") {
  const std::string text = "error: waited 1.0 s for the other ranks in ",
                    who = ": one of them has ended or has stopped\n";
  const std::pair<std::string, std::string> faults[] = {{"exit before the start", "MPI_Init"},
                                                        {"stop before the start", "MPI_Init"},
                                                        {"stop before a group", "the making of group half"},
                                                        {"stop before the end", "MPI_Finalize"}};
  for (const auto& [fault, call] : faults) {
    CAPTURE(fault);
    const int exit_code = run_fault(fault, text + call + who).exit_code;
    // Where a rank ends without MPI, mpirun may be the first to end the job, with 1.
    if (fault != "exit before the start" || exit_code != 1) CHECK(exit_code == 2);
  }
}

TEST_CASE("faults: with tensors on CUDA devices, one message ends the job, too" *
          doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  ::setenv("CUDA_EMULATOR_DEVICES", "3", 1);  // read by the software GPU alone
  ::setenv("OMP_NUM_THREADS", "1", 1);
  CHECK(run_fault("cuda: throw", "[rank 2] error: no such thing: 'x'\n").exit_code == 2);
  const ProcessResult killed = run_fault("cuda: kill", at_most_one);
  CHECK(killed.exit_code != 0);
  CHECK(killed.err.find("signal 9") != std::string::npos);
  const ProcessResult late =
      run_fault("cuda: skip", " (sum, f32, 1000000 elements) of group world; rank 2 has not come\n");
  CHECK(late.exit_code == 2);
  CHECK(late.err.find(" waited 0.") != std::string::npos);
  CHECK(late.err.find(" s in all_reduce number ") != std::string::npos);
  CHECK(run_fault("cuda: stop", " of group world; rank 2 has not come").exit_code == 2);
  CHECK(run_fault("cuda: differ", "calls of group world differ: rank 2 calls broadcast number ").exit_code ==
        2);
  const auto says = [&](const char* words) { return late.err.find(words) != std::string::npos; };
  if (says("tensors travel by NCCL") && !says("(emulated)"))
    MESSAGE("skipped: calls that differ and are not checked: NCCL itself does not compare them");
  else
    CHECK(run_fault("cuda: differ, unchecked", " elements) of group world").exit_code == 2);
  ::unsetenv("CUDA_EMULATOR_DEVICES");
  ::unsetenv("OMP_NUM_THREADS");
}

TEST_CASE(
    "faults: a rank that does not come to the collectives of a CUDA graph ends the job with one message" *
    doctest::test_suite("cuda")) {
  if (!has_cuda()) return;
  ::setenv("CUDA_EMULATOR_DEVICES", "3", 1);  // read by the software GPU alone
  ::setenv("OMP_NUM_THREADS", "1", 1);
  const ProcessResult late = run_fault("cuda: skip a launch", at_most_one);
  CAPTURE(late.err);
  const auto says = [&](const char* words) { return late.err.find(words) != std::string::npos; };
  if (says("cannot be captured: ranks exchange tensors") && !says("(emulated)")) {
    MESSAGE("skipped: graphs of ranks that share a GPU, which have no collectives");
  } else {
    CHECK(late.exit_code == 2);
    CHECK(occurrences(late.err, "] error: ") == 1);
    CHECK(says(" waited 0."));
    CHECK(says(" s in launch 2 of a CUDA graph with 2 operations, the first captured as all_reduce number "));
    CHECK(says(" (sum, f32, 3 elements) of group world; rank 2 has not come\n"));
    const ProcessResult killed = run_fault("cuda: kill before a launch", at_most_one);
    CHECK(killed.exit_code != 0);
    CHECK(killed.err.find("signal 9") != std::string::npos);
  }
  ::unsetenv("CUDA_EMULATOR_DEVICES");
  ::unsetenv("OMP_NUM_THREADS");
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
}

TEST_CASE("faults: of ranks whose sizes differ one says so, and no message is received beyond its memory") {
  struct Case {
    const char *fault, *message;
  };
  // 4 KiB and more do not go through shared memory at once, 64 KiB and more not through TCP, 1 MiB in one
  // piece.
  const Case all[] = {
      {"sizes exchange 3 100", " in exchange number 0 (1 sent, 1 received) of group world, and rank "},
      {"sizes exchange 3 5000", " in exchange number 0 (1 sent, 1 received) of group world, and rank "},
      {"sizes exchange 1500 100000", " in exchange number 0"},
      {"sizes exchange 300000 1000000", " in exchange number 0"},
      {"sizes all_reduce 3 5000", " in all_reduce number 2 (sum, f32, "},
      {"sizes all_reduce 1024 2048", " in all_reduce number 2 (sum, f32, "},
      {"sizes all_gather 3 5000", " in all_gather number 2 (f32, "},
      {"sizes all_gather 1000000 2000000", " in all_gather number 2 (f32, "},
      {"sizes reduce_scatter 1000 5000", " in reduce_scatter number 2 (sum, f32, "},
      {"sizes broadcast 3 5000", " in broadcast number 2 (from rank 2, f32, "},
      {"sizes all_to_all 3 5000", " in all_to_all number 2 (f32, rows of 1 elements)"},
  };
  for (const Case& c : all) {
    CAPTURE(c.fault);
    CHECK(run_fault(c.fault, c.message).exit_code == 2);
  }
  for (const char* fault :
       {"sizes exchange 3 5000", "sizes exchange 5000 100000", "sizes all_gather 3 100"}) {
    CAPTURE(fault);
    CHECK(run_fault(fault, " bytes of rank ", {"--mca", "btl", "tcp,self"}).exit_code == 2);
  }
}
