#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "core/error.h"
#include "core/log.h"
#include "parallel/comm/failure.h"
#include "tests/support/ranks.h"

// test_comm: tests that run on several ranks, under mpirun; without it, on one.

namespace {

nemocube::World* world = nullptr;

int run_tests(int argc, char** argv) {
  const nemocube::Launch launch = nemocube::read_launch();
  nemocube::set_log_rank(launch.rank, launch.size);
  // A rank that leaves a test early lets the others wait, which ends the program after this time.
  nemocube::World ranks(launch, {.timeout_seconds = 60});
  world = &ranks;
  doctest::Context context(argc, argv);
  context.setOption("no-colors", true);
  if (ranks.rank() > 0) context.setOption("minimal", true);  // rank 0 writes the summary, others what failed
  const int exit_code = context.run();
  nemocube::require(exit_code == 0 || ranks.size() == 1, "a test failed");
  return exit_code;
}

}  // namespace

nemocube::World& nemocube::testing::test_world() { return *world; }

int main(int argc, char** argv) {
  try {
    return run_tests(argc, argv);
  } catch (const std::exception& e) {
    return nemocube::report_failure(e.what(), 1);
  }
}
