#include "train/run/run_lock.h"

#include <doctest/doctest.h>

#include <optional>

#include "data/json/test_dir.h"

using namespace nemocube;
using namespace nemocube::testing;
namespace fs = std::filesystem;

TEST_CASE("run lock: a directory that it created and nobody filled goes with it") {
  const TestDir dir;
  {
    const RunLock lock(dir / "a" / "b" / "c");
    CHECK(lock.held());
    CHECK(fs::is_directory(dir / "a" / "b" / "c"));
  }
  CHECK(names_in(dir.path()).empty());
  {
    const RunLock lock(dir / "a" / "b");
    spit(dir / "a" / "file", "x");
  }
  CHECK(names_in(dir.path()) == std::vector<std::string>{"a"});
  CHECK(names_in(dir / "a") == std::vector<std::string>{"file"});
  fs::create_directory(dir / "mine");
  { const RunLock lock(dir / "mine"); }
  CHECK(fs::exists(dir / "mine"));
  CHECK_THROWS_WITH_AS(RunLock(dir / "a" / "file" / "below"), doctest::Contains("file/below"), Error);
  CHECK_THROWS_WITH_AS(RunLock(dir / "a" / "file"), doctest::Contains("Not a directory"), Error);
}

TEST_CASE("run lock: one at a time, from before the directory is there") {
  const TestDir dir;
  std::optional<RunLock> first(dir / "runs");
  CHECK_THROWS_WITH_AS(RunLock(dir / "runs"), doctest::Contains("another run is at work"), Error);
  CHECK(fs::exists(dir / "runs"));
  first.reset();
  CHECK(RunLock(dir / "runs").held());
}

TEST_CASE("run lock: a directory that is removed or renamed is noticed, created and locked anew") {
  const TestDir dir;
  RunLock lock(dir / "runs");
  lock.renew_if_lost();
  fs::rename(dir / "runs", dir / "moved");
  CHECK_FALSE(fs::exists(dir / "runs"));
  lock.renew_if_lost();
  CHECK(lock.held());
  CHECK(fs::is_directory(dir / "runs"));
  CHECK_THROWS_WITH_AS(RunLock(dir / "runs"), doctest::Contains("another run is at work"), Error);
  // Another run locks the new directory first, and keeps the lock.
  fs::remove(dir / "runs");
  const RunLock other(dir / "runs");
  CHECK_THROWS_WITH_AS(lock.renew_if_lost(), doctest::Contains("another run is at work"), Error);
}

TEST_CASE("run lock: others see it in the list of the kernel without taking it") {
  const TestDir dir;
  CHECK_FALSE(is_run_locked(dir / "runs"));
  {
    const RunLock lock(dir / "runs");
    CHECK(is_run_locked(dir / "runs"));
    CHECK_FALSE(is_run_locked(dir.path()));
  }
  CHECK_FALSE(is_run_locked(dir / "runs"));
}
