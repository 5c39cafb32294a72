#include "data/files/regular_file.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "data/json/test_dir.h"

using namespace nemocube;
using nemocube::testing::spit;
using nemocube::testing::TestDir;

namespace {
std::vector<std::string> lines_of(const std::filesystem::path& path, std::int64_t most = 1 << 30) {
  std::vector<std::string> lines;
  for_each_file_line(path, most, [&](std::string_view line, std::int64_t number) {
    lines.emplace_back(line);
    CHECK(number == static_cast<std::int64_t>(lines.size()));
  });
  return lines;
}
}  // namespace

TEST_CASE("regular file: contents, also through symbolic links") {
  const TestDir dir;
  spit(dir / "a", "12345");
  std::filesystem::create_symlink("a", dir / "link");
  std::filesystem::create_symlink("link", dir / "link2");
  CHECK(read_text_file(dir / "link2", 5) == "12345");
  CHECK_THROWS_WITH_AS(read_text_file(dir / "a", 4), doctest::Contains("/a: want at most 4 bytes, got 5"),
                       Error);
  RegularFile file(dir / "a");
  CHECK(file.size() == 5);
  char bytes[8];
  CHECK(file.read(bytes, 3) == 3);
  CHECK(file.read(bytes, 8) == 2);
  CHECK(file.read(bytes, 8) == 0);
}

TEST_CASE("regular file: everything else is refused at once") {
  const TestDir dir;
  REQUIRE(::mkfifo((dir / "fifo").c_str(), 0600) == 0);
  std::filesystem::create_symlink("fifo", dir / "link");
  std::filesystem::create_symlink("/dev/zero", dir / "zero");
  std::filesystem::create_symlink("nowhere", dir / "dangling");
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = dir / "s";
  REQUIRE(name.size() < sizeof address.sun_path);
  name.copy(address.sun_path, name.size());
  REQUIRE(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  const auto refused = [&](const std::filesystem::path& path, const std::string& why) {
    CAPTURE(path);
    const std::string text = path.string() + ": " + why;
    CHECK_THROWS_WITH_AS(read_text_file(path, 100), text.c_str(), Error);
    CHECK_THROWS_WITH_AS(lines_of(path), text.c_str(), Error);
  };
  refused(dir / "fifo", "want a regular file, got a FIFO");
  refused(dir / "link", "want a regular file, got a FIFO");
  refused(dir / "zero", "want a regular file, got a device");
  refused(dir / "s", "want a regular file, got a socket");
  refused(dir.path(), "want a regular file, got a directory");
  refused(dir / "none", "cannot open: No such file or directory");
  refused(dir / "dangling", "cannot open: No such file or directory");
  ::close(socket);
}

TEST_CASE("regular file: lines") {
  const TestDir dir;
  spit(dir / "a", "one\n\nthree\r\nfour");
  CHECK(lines_of(dir / "a") == std::vector<std::string>{"one", "", "three\r", "four"});
  spit(dir / "b", "");
  CHECK(lines_of(dir / "b").empty());
  spit(dir / "c", "\n");
  CHECK(lines_of(dir / "c") == std::vector<std::string>{""});
  // Lines that cross the pieces in which a file is read, and a file that ends with a piece.
  std::string text, last(3 << 20, 'z');
  std::vector<std::string> want;
  for (int i = 0; text.size() < (1u << 20) - 5; ++i) {
    want.push_back(std::string(static_cast<std::size_t>(i % 70000), static_cast<char>('a' + i % 26)));
    text += want.back() + '\n';
    i += 997;
  }
  want.push_back(last);
  text += last;
  text.resize(4 << 20, 'z');
  want.back() = text.substr(text.rfind('\n') + 1);
  spit(dir / "d", text);
  CHECK(lines_of(dir / "d") == want);
  spit(dir / "e", "ok\n" + std::string(50, 'x') + "\n");
  CHECK_THROWS_WITH_AS(lines_of(dir / "e", 49), doctest::Contains("/e: line 2: want at most 49 bytes"),
                       Error);
  CHECK(lines_of(dir / "e", 50).size() == 2);
  CHECK_THROWS_WITH_AS(lines_of(dir / "d", 1 << 21), doctest::Contains("want at most 2097152 bytes"), Error);
}
