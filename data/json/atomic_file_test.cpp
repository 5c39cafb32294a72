#include "data/json/atomic_file.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <csignal>

#include "data/files/crc32c.h"
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
  // Only regular files are replaced: as root, a rename would replace a device by a file.
  for (const std::filesystem::path& place : {dir / "taken", std::filesystem::path("/dev/null")})
    CHECK_THROWS_WITH_AS(AtomicFile{place}, doctest::Contains("not a regular file"), Error);
  CHECK_THROWS_WITH_AS(AtomicFile{""}, doctest::Contains("empty"), Error);
  CHECK(names_in(dir.path()) == std::vector<std::string>{"file", "taken"});
}

TEST_CASE("atomic file: what was written is what is read back, also of more than one piece") {
  const TestDir dir;
  std::string text(3'000'000, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * i >> 7);
  AtomicFile file(dir / "large");
  file.write(std::string_view(text).substr(0, 10));
  file.write(std::string_view(text).substr(10));
  const FileSum written = file.sum();
  file.commit();
  CHECK(written == FileSum{3'000'000, crc32c(std::as_bytes(std::span(text)))});
  CHECK(sum_of_file(dir / "large") == written);
  CHECK(write_file_atomically(dir / "small", "123456789") == FileSum{9, 0xE3069283});
  CHECK(sum_of_file(dir / "small") == FileSum{9, 0xE3069283});
  text[2'500'000] ^= 4;
  spit(dir / "large", text);
  CHECK_FALSE(sum_of_file(dir / "large") == written);
  CHECK_THROWS_WITH_AS(sum_of_file(dir / "none"), doctest::Contains("none: cannot open"), Error);
  CHECK_THROWS_WITH_AS(sum_of_file(dir.path()), doctest::Contains("regular file"), Error);
}

TEST_CASE("atomic file: temporary names are told from others") {
  const std::string hidden = temporary_sibling("runs/training.jsonl").filename().string();
  CHECK(target_of_temporary(hidden) == "training.jsonl");
  CHECK(target_of_temporary(".a.1.2.tmp") == "a");
  CHECK(target_of_temporary(".a.b.12.34.tmp") == "a.b");
  for (const char* other : {"", ".tmp", "a.1.2.tmp", ".a.1.tmp", ".1.2.tmp", "..1.2.tmp", ".a.x.2.tmp",
                            ".a.1.2.tm", ".a.1..tmp", ".a..2.tmp", ".a.1.2x.tmp"})
    CHECK_FALSE(target_of_temporary(other).has_value());
}

TEST_CASE("atomic file: no room left") {
  const TestDir dir;
  // A limit on file sizes acts like a full disk: write() writes only a part, then fails.
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
