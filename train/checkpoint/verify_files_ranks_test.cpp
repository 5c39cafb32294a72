#include "train/checkpoint/verify_files.h"

#include <doctest/doctest.h>

#include <cstdlib>

#include "tests/support/shared_dir.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;

Communicator* world() { return &test_world().communicator(); }
bool first() { return test_world().rank() == 0; }

/// Larger than what a thread takes at once, empty, and of one byte: parts of ranks end within files and at
/// their ends.
void write_files(const fs::path& dir) {
  std::string large(40'000'003, 'x');
  for (std::size_t i = 0; i < large.size(); i += 997) large[i] = static_cast<char>(i * 31);
  fs::create_directory(dir / "sub");
  spit(dir / "a", "1");
  spit(dir / "empty", "");
  spit(dir / "sub" / "large", large);
  spit(dir / "z", "a short file");
}

FileSums sums_of(const fs::path& dir) {
  FileSums sums;
  for (const char* name : {"a", "empty", "sub/large", "z"}) sums[name] = sum_of_file(dir / name);
  return sums;
}

}  // namespace

TEST_CASE("verify files: every damaged one is named on all ranks, and nothing else is") {
  const SharedDir dir;
  if (first()) write_files(dir.path());
  world()->host_barrier();
  const FileSums sums = sums_of(dir.path());
  std::int64_t done = 0, total = -1;
  CHECK(find_damage(dir.path(), sums, world(), [&](std::int64_t d, std::int64_t t) {
          CHECK(d > done);
          done = d;
          total = t;
        }).empty());
  CHECK((done == total || total == -1));  // -1: this rank had nothing to read
  // That of all ranks, as far as this one can tell, whose part is equal to theirs but for a byte.
  const std::int64_t all = 40'000'003 + 1 + 12;
  CHECK(std::abs(done - all) < test_world().size());
  const std::string large = first() ? slurp(dir / "sub/large") : "";
  for (const std::size_t at : {std::size_t{0}, std::size_t{16} << 20, std::size_t{40'000'002}}) {
    if (first()) {
      std::string bad = large;
      bad[at] ^= 4;
      spit(dir / "sub/large", bad);
    }
    world()->host_barrier();
    const auto damage = find_damage(dir.path(), sums, world());
    REQUIRE(damage.size() == 1);
    CHECK_MESSAGE(damage[0].starts_with((dir / "sub/large").string() + ": damaged: its CRC-32C is "),
                  damage[0]);
    world()->host_barrier();
  }
  if (first()) {
    fs::remove(dir / "a");
    spit(dir / "empty", "x");
    spit(dir / "z", "a short");
  }
  world()->host_barrier();
  const auto damage = find_damage(dir.path(), sums, world());
  REQUIRE(damage.size() == 4);
  CHECK(damage[0] == (dir / "a").string() + ": cannot open: No such file or directory");
  CHECK(damage[1] == (dir / "empty").string() + ": damaged: has 1 bytes, was written with 0");
  CHECK(damage[2].starts_with((dir / "sub/large").string() + ": damaged: its CRC-32C is "));
  CHECK(damage[3] == (dir / "z").string() + ": damaged: has 7 bytes, was written with 12");
}

TEST_CASE("verify files: lengths that no file has are told without reading, and no sums are no damage") {
  const SharedDir dir;
  if (first()) spit(dir / "a", "1");
  world()->host_barrier();
  CHECK(find_damage(dir.path(), {}, world()).empty());
  for (const std::int64_t bytes : {std::int64_t{-5}, std::int64_t{1} << 60}) {
    const auto damage = find_damage(dir.path(), {{"a", {bytes, 7}}}, world());
    REQUIRE(damage.size() == 1);
    CHECK(damage[0] == cat((dir / "a").string(), ": damaged: has 1 bytes, was written with ", bytes));
  }
}
