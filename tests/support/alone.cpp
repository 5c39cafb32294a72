#include "tests/support/alone.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/support/process.h"

namespace nemocube::testing {

bool alone() {
  std::string name = doctest::getContextOptions()->currentTest->m_name;
  if (const char* own = std::getenv("NEMOCUBE_TEST_ALONE"); own && own == name) return true;
  const std::string variable = "NEMOCUBE_TEST_ALONE=" + name;
  std::ranges::replace(name, ',', '?');  // a comma ends a pattern
  const ProcessResult run = run_process(
      {"env", variable, std::filesystem::read_symlink("/proc/self/exe").string(), "--test-case=" + name});
  CAPTURE(run.out);
  CAPTURE(run.err);
  CHECK(run.exit_code == 0);
  CHECK(run.out.find(" 1 passed") != std::string::npos);
  return false;
}

}  // namespace nemocube::testing
