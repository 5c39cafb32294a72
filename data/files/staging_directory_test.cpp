#include "data/files/staging_directory.h"

#include <doctest/doctest.h>

#include "data/json/test_dir.h"

using namespace nemocube;
using nemocube::testing::names_in;
using nemocube::testing::slurp;
using nemocube::testing::spit;
using nemocube::testing::TestDir;
using Names = std::vector<std::string>;

TEST_CASE("staging directory: whole under its name or not there") {
  const TestDir dir;
  {
    StagingDirectory staging(dir / "new");
    spit(staging.path() / "file", "x");
    CHECK_FALSE(std::filesystem::exists(dir / "new"));
    staging.publish();
  }
  CHECK(names_in(dir.path()) == Names{"new"});
  CHECK(slurp(dir / "new/file") == "x");
  {
    StagingDirectory staging(dir / "other");
    spit(staging.path() / "file", "x");
  }
  CHECK(names_in(dir.path()) == Names{"new"});
  {
    StagingDirectory staging(dir / "new");  // taken: refused at the end, nothing left
    CHECK_THROWS_WITH_AS(staging.publish(), doctest::Contains("new: cannot be put in place"), Error);
  }
  CHECK(names_in(dir.path()) == Names{"new"});
  spit(dir / "file", "x");
  CHECK_THROWS_WITH_AS(StagingDirectory(dir / "file/new"), doctest::Contains("file/new: cannot create"),
                       Error);
}

TEST_CASE("staging directory: what a killed process left goes, what another one writes stays") {
  const TestDir dir;
  for (const char* name : {".new.1.0.tmp", ".new.1.x.tmp", ".other.1.0.tmp"}) {
    std::filesystem::create_directories(dir / name);
    spit(dir / name / "file", "x");
  }
  spit(dir / ".new.2.0.tmp", "a file");
  StagingDirectory first(dir / "new");
  StagingDirectory second(dir / "new");
  CHECK(std::filesystem::exists(first.path()));
  CHECK(names_in(dir.path()).size() == 5);  // both, and names that are not staging directories of `new`
  CHECK_FALSE(std::filesystem::exists(dir / ".new.1.0.tmp"));
}
