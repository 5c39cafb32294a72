#include "data/files/open_file.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <cerrno>
#include <deque>

#include "data/files/regular_file.h"
#include "data/json/test_dir.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

TEST_CASE("open file: a low limit of open files is raised where more are needed") {
  const TestDir dir;
  spit(dir / "a", "text");
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  if (before.rlim_max < 200) return;
  const rlimit low{40, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
  {
    std::deque<RegularFile> files;
    for (int i = 0; i < 100; ++i) files.emplace_back(dir / "a");
    CHECK(files.back().size() == 4);
  }
  rlimit after{};
  ::getrlimit(RLIMIT_NOFILE, &after);
  CHECK(after.rlim_cur == before.rlim_max);
  CHECK(after.rlim_max == before.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &before);
  CHECK(open_message(ENOENT) == "No such file or directory");
  CHECK(open_message(EMFILE).starts_with(
      cat("Too many open files: the process may have ", before.rlim_cur, " files open")));
}

}  // namespace
