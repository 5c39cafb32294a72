#include "data/json/atomic_file.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <csignal>

#include "data/json/test_dir.h"

using namespace nemocube;
using nemocube::testing::names_in;
using nemocube::testing::slurp;
using nemocube::testing::spit;
using nemocube::testing::TestDir;

TEST_CASE("atomic file: the target changes at commit and never before") {
  const TestDir dir;
  spit(dir / "a", "old");
  {
    AtomicFile file(dir / "a");
    file.write("new ");
    file.write("text");
    CHECK(file.written() == 8);
    CHECK(slurp(dir / "a") == "old");
    file.commit();
    CHECK(slurp(dir / "a") == "new text");
  }
  CHECK(names_in(dir.path()) == std::vector<std::string>{"a"});
  {
    AtomicFile file(dir / "a");
    file.write("lost");
  }
  CHECK(slurp(dir / "a") == "new text");
  CHECK(names_in(dir.path()) == std::vector<std::string>{"a"});
  write_file_atomically(dir / "b", "");
  CHECK(slurp(dir / "b").empty());
}

TEST_CASE("atomic file: errors name the target and leave nothing behind") {
  const TestDir dir;
  CHECK_THROWS_WITH_AS(AtomicFile(dir / "no/such"), doctest::Contains("no/such: cannot create: No such file"),
                       Error);
  spit(dir / "file", "x");
  CHECK_THROWS_WITH_AS(AtomicFile(dir / "file/a"), doctest::Contains("Not a directory"), Error);
  {
    AtomicFile file(dir / "taken");
    std::filesystem::create_directories(dir / "taken/inside");
    CHECK_THROWS_WITH_AS(file.commit(), doctest::Contains("taken: cannot rename"), Error);
  }
  // What is no regular file is not replaced: as root, a rename would put a file in the place of a device.
  for (const std::filesystem::path& place : {dir / "taken", std::filesystem::path("/dev/null")})
    CHECK_THROWS_WITH_AS(AtomicFile{place}, doctest::Contains("not a regular file"), Error);
  CHECK_THROWS_WITH_AS(AtomicFile{""}, doctest::Contains("empty"), Error);
  CHECK(names_in(dir.path()) == std::vector<std::string>{"file", "taken"});
}

TEST_CASE("atomic file: no room left") {
  const TestDir dir;
  // A limit on file sizes stands in for a full disk: write() comes back short, then fails.
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1 << 20, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  std::string message;
  try {
    write_file_atomically(dir / "large", std::string(3 << 20, 'x'));
  } catch (const Error& error) {
    message = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK_MESSAGE(message.find("large: cannot write: File too large (after 1048576 bytes)") != message.npos,
                message);
  CHECK(names_in(dir.path()).empty());
}
