#include "train/logging/jsonl.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"

using namespace nemocube;
namespace fs = std::filesystem;

namespace {

struct Folder {
  fs::path path;
  Folder() {
    std::string name = (fs::temp_directory_path() / "nemocube_jsonl_XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
};

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

}  // namespace

TEST_CASE("a line is valid JSON with keys in order and numbers that read back") {
  JsonLine line;
  line.add("step", std::int64_t{3}).add("loss", 0.1 + 0.2).add("tiny", 5e-324).add("whole", 2.0);
  line.add("flag", true).add("text", "a\"\\\n\xff").add("none", std::optional<double>{});
  CHECK(line.text().starts_with(
      R"({"step": 3, "loss": 0.30000000000000004, "tiny": 5e-324, "whole": 2, "flag": true)"));
  const auto json = nlohmann::json::parse(line.text());
  CHECK(json["loss"].get<double>() == 0.1 + 0.2);
  CHECK(json["tiny"].get<double>() == 5e-324);
  CHECK(json["text"] == "a\"\\\n\xEF\xBF\xBD");
  CHECK(json["none"].is_null());
  CHECK(JsonLine{}.text() == "{}");
}

TEST_CASE("what is not finite becomes a string that is still a number to Python") {
  JsonLine line;
  line.add("a", std::nan(""))
      .add("b", HUGE_VAL)
      .add("c", -HUGE_VAL)
      .add("d", std::optional<double>(std::nan("")));
  CHECK(line.text() == R"({"a": "NaN", "b": "Infinity", "c": "-Infinity", "d": "NaN"})");
}

TEST_CASE("lines are appended, at once, in folders that are created") {
  const Folder folder;
  const fs::path path = folder.path / "a/b/log.jsonl";
  {
    JsonlWriter writer(path);
    writer.append(JsonLine{}.add("step", std::int64_t{0}));
    CHECK(text_of(path) == "{\"step\": 0}\n");
    JsonlWriter moved(std::move(writer));
    moved.append(JsonLine{}.add("step", std::int64_t{1}));
  }
  JsonlWriter(path).append(JsonLine{}.add("step", std::int64_t{2}));
  CHECK(text_of(path) == "{\"step\": 0}\n{\"step\": 1}\n{\"step\": 2}\n");
}

TEST_CASE("a log that is removed, renamed or replaced between two lines is noticed") {
  const Folder folder;
  const fs::path path = folder.path / "runs" / "log.jsonl";
  JsonlWriter writer(path);
  const auto append = [&](std::int64_t step) { writer.append(JsonLine{}.add("step", step)); };
  append(0);
  fs::remove(path);
  append(1);
  CHECK(text_of(path) == "{\"step\": 1}\n");
  fs::rename(path, folder.path / "kept");
  append(2);
  CHECK(text_of(path) == "{\"step\": 2}\n");
  CHECK(text_of(folder.path / "kept") == "{\"step\": 1}\n");
  fs::remove_all(folder.path / "runs");
  append(3);
  append(4);
  CHECK(text_of(path) == "{\"step\": 3}\n{\"step\": 4}\n");
  fs::remove(path);
  write(path, "notes of mine\n");
  CHECK_THROWS_WITH_AS(append(5), doctest::Contains("no log of a training run"), Error);
  CHECK(text_of(path) == "notes of mine\n");
}

TEST_CASE("a log that cannot be written names itself") {
  const Folder folder;
  write(folder.path / "file", "x");
  const std::string below_file = (folder.path / "file/log.jsonl").string();
  CHECK_THROWS_WITH_AS(JsonlWriter{below_file}, doctest::Contains(below_file.c_str()), Error);
  const std::string is_folder = folder.path.string();
  CHECK_THROWS_WITH_AS(JsonlWriter{is_folder}, doctest::Contains("cannot open this log: Is a directory"),
                       Error);
  if (fs::exists("/dev/full")) {
    JsonlWriter full("/dev/full");
    CHECK_THROWS_WITH_AS(full.append(JsonLine{}), "/dev/full: cannot write: No space left on device", Error);
  } else {
    MESSAGE("no /dev/full: a full disk was not tried");
  }
}

TEST_CASE("a resumed run drops what lies after its first step, and damage") {
  const Folder folder;
  const fs::path path = folder.path / "log.jsonl";
  CHECK(start_log(path, 5) == 0);
  CHECK_FALSE(fs::exists(path));
  write(path,
        "{\"step\": 0}\n{\"step\": 1, \"loss\": \"NaN\"}\nnonsense\n{\"loss\": 1}\n[1]\n{\"step\": "
        "2}\n{\"step\": 3}\n{\"st");
  CHECK(start_log(path, 2) == 6);
  CHECK(text_of(path) == "{\"step\": 0}\n{\"step\": 1, \"loss\": \"NaN\"}\n");
  CHECK(start_log(path, 2) == 0);
  write(path, "{\"step\": 0}");
  CHECK(start_log(path, 1) == 0);
  CHECK(text_of(path) == "{\"step\": 0}\n");
  CHECK(std::distance(fs::directory_iterator(folder.path), {}) == 1);
}

TEST_CASE("a new run keeps the log of an earlier one beside its own") {
  const Folder folder;
  const fs::path path = folder.path / "log.jsonl";
  for (const char* run : {"first", "second"}) {
    write(path, run);
    CHECK(start_log(path, 0) == 0);
    CHECK_FALSE(fs::exists(path));
  }
  CHECK(text_of(folder.path / "log.jsonl.1") == "first");
  CHECK(text_of(folder.path / "log.jsonl.2") == "second");
  write(path, "");
  start_log(path, 0);
  CHECK_FALSE(fs::exists(folder.path / "log.jsonl.3"));
}
