#include "data/files/file_sum.h"

#include <doctest/doctest.h>

#include "data/files/regular_file.h"
#include "data/json/atomic_file.h"
#include "data/json/test_dir.h"

using namespace nemocube;

TEST_CASE("file sum: a small file counts whole, a large one by pieces from its first byte to its last") {
  const testing::TestDir dir;
  const auto sampled = [&](const std::string& text) {
    testing::spit(dir / "f", text);
    return sampled_sum(RegularFile(dir / "f"));
  };
  CHECK(sampled("") == FileSum{});
  CHECK(sampled("123456789") == FileSum{9, 0xE3069283});
  CHECK(to_string(sampled("123456789")) == "9 bytes, sum 3808858755");
  std::string text(std::size_t{1} << 20, 'x');
  CHECK(sampled(text) == sum_of(text));
  text.resize(std::size_t{9} << 20, 'y');
  const FileSum before = sampled(text);
  CHECK(before.bytes == std::ssize(text));
  for (const std::size_t at : {std::size_t{0}, text.size() - 1, text.size() / 15 * 7}) {
    CAPTURE(at);
    std::string other = text;
    other[at] = 'z';
    CHECK(sampled(other).crc32c != before.crc32c);
  }
}
