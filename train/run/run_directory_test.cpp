#include "train/run/run_directory.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string_view>

#include "data/json/test_dir.h"
#include "train/run/run_lock.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;

/// Whether a user who is not root passes the check: root may write everywhere.
bool passes_as_nobody(const fs::path& directory) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(2);
    try {
      check_run_directory(directory);
    } catch (const Error& e) {
      ::_exit(std::string_view(e.what()).ends_with(": Permission denied") ? 1 : 2);
    }
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) != 2);
  return WEXITSTATUS(status) == 0;
}

}  // namespace

TEST_CASE("run directory: one that can be made or written passes, and nothing is created") {
  const TestDir dir;
  ::chmod(dir.path().c_str(), 0777);
  CHECK_NOTHROW(check_run_directory(dir.path()));
  CHECK_NOTHROW(check_run_directory(dir / "new/deep/"));
  CHECK(passes_as_nobody(dir / "new"));
  CHECK(fs::is_empty(dir.path()));

  fs::create_directory(dir / "closed");
  ::chmod((dir / "closed").c_str(), 0555);
  CHECK_FALSE(passes_as_nobody(dir / "closed"));
  CHECK_FALSE(passes_as_nobody(dir / "closed/new/deep"));

  spit(dir / "file", "");
  CHECK_THROWS_WITH_AS(check_run_directory(dir / "file"), doctest::Contains("not a directory"), Error);
  CHECK_THROWS_WITH_AS(check_run_directory(dir / "file/new"), doctest::Contains("not a directory"), Error);
  fs::create_symlink(dir / "gone", dir / "link");
  CHECK_THROWS_WITH_AS(check_run_directory(dir / "link/new"), doctest::Contains("link to nothing"), Error);
}

TEST_CASE("run directory: file systems that take no files are refused, to root as well") {
  for (const char* place : {"/proc/nemocube", "/proc/nemocube/deep/run", "/proc"})
    CHECK_THROWS_WITH_AS(check_run_directory(place),
                         doctest::Contains("'/proc' is on a file system of the kernel"), Error);
  // Without the right to mount one, a read-only file system has to be there already.
  std::ifstream mounts("/proc/self/mounts");
  std::string device, place, kind, options, rest;
  int found = 0;
  while (mounts >> device >> place >> kind >> options && std::getline(mounts, rest))
    if (options.starts_with("ro,") && fs::is_directory(place) && kind != "sysfs" && kind != "proc") {
      CAPTURE(place);
      ++found;
      CHECK_THROWS_AS(check_run_directory(fs::path(place) / "nemocube"), Error);
    }
  if (found == 0) MESSAGE("no file system is mounted read-only here, so none was tried");
}

TEST_CASE("run directory: one in which a run is at work is refused, and the check leaves no lock") {
  const TestDir dir;
  {
    const RunLock held(dir.path());
    CHECK_THROWS_WITH_AS(check_run_directory(dir.path()), doctest::Contains("another run is at work"), Error);
  }
  CHECK_NOTHROW(check_run_directory(dir.path()));
  CHECK(RunLock(dir.path()).held());
}
