#include <doctest/doctest.h>

#include <string>

#include "tests/outcome.h"

/// When a kernel counts as hanging, and what a signal makes it say.
namespace {

const std::string run = "'" CUDA_EMULATOR_RUN "' ";
const std::string faults = " '" CUDA_EMULATOR_FAULTS "' ";

void check_answer(const std::string& program, int status) {
  const Outcome outcome = outcome_of(run + "--hang-after 0" + faults + program);
  CAPTURE(outcome.text);
  CHECK(outcome.status == status);
  for (const char* const text :
       {"cuda_emulator: signal ", "wait_for_ever", "of 1 blocks 1 have begun and 0 have ended",
        "of 1 block (first: ", "waiting.cu:", "ld.volatile.global.u32"}) {
    CAPTURE(text);
    CHECK(outcome.text.find(text) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("a kernel that computes for long without a store is not said to hang") {
  for (const char* const checks : {"", "--no-check "}) {
    const Outcome outcome = outcome_of(run + checks + "--hang-after 1000000" + faults + "long_computation");
    CAPTURE(outcome.text);
    CHECK(outcome.status == 0);
    CHECK(outcome.text == "");
  }
}

TEST_CASE("a hang ends with the usual limit too, with and without checks") {
  for (const char* const checks : {"", "--no-check "}) {
    const Outcome outcome = outcome_of(run + checks + faults + "flag_never_raised");
    CAPTURE(outcome.text);
    CHECK(outcome.status == 99);
    CHECK(outcome.text.find("[no-progress]") != std::string::npos);
  }
}

TEST_CASE("a signal makes a running kernel say where its warps stand, and ends the program") {
  check_answer("terminated", 128 + 15);
  check_answer("interrupted", 128 + 2);
}
