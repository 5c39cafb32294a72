#include "core/environment.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "tests/support/paths.h"

using namespace nemocube;

TEST_CASE("environment: every name is in the table once") {
  std::set<std::string> names;
  for (const EnvironmentVariable& variable : environment_variables) {
    CAPTURE(variable.name);
    CHECK(names.insert(variable.name).second);
  }
}

// The table is complete only as long as nothing else reads a variable.
TEST_CASE("environment: product code reads variables in one place") {
  namespace fs = std::filesystem;
  const fs::path& source = nemocube::testing::source_dir();
  int files = 0;
  for (const char* folder : {"core", "ops", "model", "parallel", "data", "train"})
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(source / folder)) {
      const std::string name = entry.path().filename().string(),
                        extension = entry.path().extension().string();
      if ((extension != ".cpp" && extension != ".h" && extension != ".cu" && extension != ".cuh") ||
          name.ends_with("_test.cpp") || entry.path() == source / "core" / "environment.cpp")
        continue;
      ++files;
      std::ostringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      CAPTURE(entry.path().string());
      CHECK(text.str().find("getenv") == std::string::npos);
      CHECK(text.str().find("environ[") == std::string::npos);
    }
  CHECK(files > 300);
}
