#include <doctest/doctest.h>

#include <atomic>

#include "data/datasets/streamed_rows.h"
#include "data/json/test_dir.h"
#include "parallel/comm/together.h"
#include "tests/support/message_of.h"
#include "tests/support/shared_dir.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

Communicator* world() { return &test_world().communicator(); }

/// Rows [[id, tokens]]: a row of so many targets.
RowSource counted_rows(const std::filesystem::path& path, std::atomic<std::int64_t>& made) {
  RowSource source;
  source.what = "counted rows";
  source.files = {path};
  source.read = [&made](const JsonView& row, std::int64_t) -> RowMaker {
    const auto values = row.elements();
    return [&made, id = values[0].integer(), tokens = values[1].integer()] {
      ++made;
      require(tokens >= 0, "row ", id, " is bad");
      TokenRow out;
      out.id = std::to_string(id);
      for (std::int64_t t = 0; t < tokens; ++t) out.append(id, true);
      return out;
    };
  };
  return source;
}

void write_rows(const std::filesystem::path& path, int rows, int bad) {
  std::string text;
  for (int i = 0; i < rows; ++i) text += cat("[", i, ", ", i == bad ? -1 : i % 5, "]\n");
  on_rank_0(world(), [&] { spit(path, text); });
}

}  // namespace

TEST_CASE("streamed rows: ranks divide the work, and have the same rows") {
  const SharedDir dir;
  const std::filesystem::path path = dir.path() / "f.jsonl";
  constexpr int rows = 1000;
  write_rows(path, rows, -1);
  std::atomic<std::int64_t> made = 0, made_alone = 0;
  StreamedRows::Options options;
  options.ranks = world();
  const StreamedRows all(counted_rows(path, made), options);
  // Of the rows without labels, the first three are made again, for the message.
  const int ranks = world()->size();
  CHECK(made <= (rows + ranks - 1) / ranks + 3);
  CHECK(made >= rows / ranks + 3);
  const StreamedRows alone(counted_rows(path, made_alone));
  REQUIRE(all.size() == alone.size());
  CHECK(all.size() == rows / 5 * 3);  // a label needs two tokens
  for (std::int64_t i = 0; i < all.size(); ++i) {
    CHECK(all.sample(i).id == alone.sample(i).id);
    CHECK(all.content_length(i) == alone.content_length(i));
  }
}

TEST_CASE("streamed rows: a bad row ends all ranks, which all name it") {
  const SharedDir dir;
  const std::filesystem::path path = dir.path() / "f.jsonl";
  for (const int bad : {0, 999}) {
    write_rows(path, 1000, bad);
    std::atomic<std::int64_t> made = 0;
    StreamedRows::Options options;
    options.ranks = world();
    const std::string text = message_of([&] { StreamedRows(counted_rows(path, made), options); });
    CHECK(text.find(cat("row ", bad, " is bad")) != std::string::npos);
  }
}

TEST_CASE("streamed rows: files that differ are refused on every rank") {
  if (world()->size() == 1) return;
  const SharedDir dir;
  const std::filesystem::path path = dir.path() / cat(world()->rank() == 1 ? "b" : "a", ".jsonl");
  struct Case {
    const char *rows, *found;  // as many bytes as rank 0 has
  };
  for (const Case c : {Case{"[1, 9]\n[2, 9]\n[3, 9]\n", "that of rank 1 has 3 lines"},
                       {"[1, 9]\n[2, 8]\n      \n", "that of rank 1 has 2 lines and 21 bytes, sum "}}) {
    CAPTURE(c.rows);
    on_rank_0(world(), [&] {
      spit(dir.path() / "a.jsonl", "[1, 9]\n[2, 9]\n      \n");
      spit(dir.path() / "b.jsonl", c.rows);
    });
    std::atomic<std::int64_t> made = 0;
    StreamedRows::Options options;
    options.ranks = world();
    const std::string text = message_of([&] { StreamedRows(counted_rows(path, made), options); });
    CHECK(text.find("want the same file on all ranks, but that of rank 0 has 2 lines") != std::string::npos);
    CHECK(text.find(c.found) != std::string::npos);
    CHECK(made == 0);
  }
}
