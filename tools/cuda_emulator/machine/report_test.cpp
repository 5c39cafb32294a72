#include "machine/report.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace emulator;

TEST_CASE("reports are counted by severity and kind") {
  take_report_kinds();
  const std::uint64_t errors = reported_errors();
  report(Severity::note, "test-note", "a note (from report_test)");
  report(Severity::warning, "test-warning", "a warning (from report_test)");
  CHECK(reported_errors() == errors);
  report(Severity::error, "test-error", "an error (from report_test)");
  report(Severity::error, "test-error", "an error (from report_test)");
  CHECK(reported_errors() == errors + 2);
  CHECK(take_report_kinds() ==
        std::vector<std::string>{"test-note", "test-warning", "test-error", "test-error"});
  CHECK(take_report_kinds().empty());
  CHECK(exit_status(0) == 99);
  CHECK(exit_status(3) == 3);
}

TEST_CASE("inlined code is named with its outermost call") {
  ptx::Module module;
  module.files = {"", "user.cu", "library.h", "deep.h"};
  module.inlinings = {{}, {"outer", 1, 14, 0}, {"inner", 2, 30, 1}};
  CHECK(describe_source(module, {1, 1, 9, 0}) == "user.cu:9");
  CHECK(describe_source(module, {1, 2, 30, 1}) == "library.h:30, called from user.cu:14");
  CHECK(describe_source(module, {1, 3, 5, 2}) == "deep.h:5, called from user.cu:14");
  CHECK(describe_source(module, {1, 0, 0, 0}) == "");
  CHECK(describe_source(module, {1, 9, 5, 0}) == "");
}

TEST_CASE("a fault is a repetition when it was reported at the same instruction") {
  const Instruction* first = reinterpret_cast<const Instruction*>(0x1000);
  CHECK_FALSE(repeated("test-kind", {nullptr, -1, first}));
  CHECK_FALSE(repeated("test-kind", {}));
}
