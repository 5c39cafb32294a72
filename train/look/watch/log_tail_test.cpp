#include "train/look/watch/log_tail.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include "core/error.h"
#include "data/json/test_dir.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

/// What a tail has delivered; "|" stands for a restart.
struct Follower {
  explicit Follower(const std::filesystem::path& path, std::int64_t history = LogTail::default_history)
      : tail(path, history) {}
  std::vector<std::string> news() {
    std::vector<std::string> lines;
    while (tail.poll([&](std::string_view line) { lines.emplace_back(line); },
                     [&] { lines.emplace_back("|"); })) {
    }
    return lines;
  }
  LogTail tail;
};
using Lines = std::vector<std::string>;

void append(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::app | std::ios::binary) << text;
}

}  // namespace

TEST_CASE("log tail: each line once, also those that arrive in parts") {
  const TestDir dir;
  Follower log(dir / "log");
  CHECK(log.news() == Lines{});  // does not exist yet
  append(dir / "log", "one\ntw");
  CHECK(log.news() == Lines{"one"});
  CHECK(log.news() == Lines{});
  append(dir / "log", "o\n\nfour\n");
  CHECK(log.news() == Lines{"two", "", "four"});
}

TEST_CASE("log tail: a file that was cut, replaced, rewritten or removed is read anew") {
  const TestDir dir;
  Follower log(dir / "log");
  append(dir / "log", "one\ntwo\nthr");
  CHECK(log.news() == Lines{"one", "two"});
  spit(dir / "log", "one\n");
  CHECK(log.news() == Lines{"|", "one"});
  spit(dir / "other", "one\nnew\n");
  std::filesystem::rename(dir / "other", dir / "log");
  CHECK(log.news() == Lines{"|", "one", "new"});
  spit(dir / "log", "abc\nlonger than before\n");  // the same inode
  CHECK(log.news() == Lines{"|", "abc", "longer than before"});
  std::filesystem::remove(dir / "log");
  CHECK(log.news() == Lines{"|"});
  CHECK(log.news() == Lines{});
  append(dir / "log", "again\n");
  CHECK(log.news() == Lines{"again"});
}

TEST_CASE("log tail: of a large file the end, from the beginning of a line; nothing new is lost") {
  const TestDir dir;
  std::string text;
  for (int i = 0; i < 1'000'000; ++i) text += cat("line ", i, "\n");
  spit(dir / "log", text);
  Follower whole(dir / "log");
  CHECK(whole.news().size() == 1'000'000);
  Follower end(dir / "log", 100);
  const Lines last = end.news();
  REQUIRE(last.size() == 8);
  CHECK(last.front() == "line 999992");
  append(dir / "log", text);
  CHECK(end.news().size() == 1'000'000);
}

TEST_CASE("log tail: a line without end does not fill the memory, and is left out") {
  const TestDir dir;
  Follower log(dir / "log");
  append(dir / "log", std::string(LogTail::most_line + 5, 'x'));
  CHECK(log.news() == Lines{});
  append(dir / "log", "x\nshort\n");
  CHECK(log.news() == Lines{"short"});
}

TEST_CASE("log tail: what is no file is refused, without waiting") {
  const TestDir dir;
  REQUIRE(::mkfifo((dir / "fifo").c_str(), 0600) == 0);
  for (const char* name : {"fifo", "."}) {
    Follower log(dir / name);
    CHECK(message_of([&] { log.news(); }).find("want a log") != std::string::npos);
  }
}
