#include <doctest/doctest.h>

#include <cstdlib>

#include "tests/support/paths.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

// A release of oneDNN that the program has not been tested with (tests/support/preload/other_onednn.cpp).
TEST_CASE(
    "oneDNN release: one that nobody has tried is used where its products are right, else refused by name") {
  const RunDir dir;
  const char* const asan = std::getenv("ASAN_OPTIONS");
  const auto train = [&](const Words& variables) {
    // The sanitizer's library comes after the preloaded one.
    const Words with{"/usr/bin/env", "LD_PRELOAD=" + preload_library("other_onednn"),
                     cat("ASAN_OPTIONS=verify_asan_link_order=0:", asan ? asan : "")};
    return run_process(
        plus(plus(with, variables), {program(), "--log-level", "debug", "train", "recipe.yaml", "--set",
                                     "step_scheduler.max_steps=1", "--set", "lr_scheduler=null"}),
        dir.path());
  };
  const ProcessResult wrong = train({"NEMOCUBE_IDLE_ONEDNN=1"});
  CAPTURE(wrong.err);
  CHECK(wrong.exit_code == 2);
  CHECK(wrong.err.find("error: matmul: oneDNN 9.8.7 of this machine computes wrong products: ") !=
        std::string::npos);
  const ProcessResult right = train({});
  CAPTURE(right.err);
  CHECK(right.exit_code == 0);
  CHECK(right.err.find("oneDNN 9.8.7 is not among the tested releases") != std::string::npos);
}
