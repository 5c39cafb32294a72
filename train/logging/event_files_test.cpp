#include "train/logging/event_files.h"

#include <doctest/doctest.h>

#include <fstream>

#include "core/error.h"
#include "tests/support/read_events.h"

using namespace nemocube;
using namespace nemocube::testing;
namespace fs = std::filesystem;

namespace {

using Steps = std::vector<std::int64_t>;

/// A clock that stands still.
WallClock at(std::int64_t seconds) {
  return [seconds] { return std::chrono::system_clock::time_point(std::chrono::seconds(seconds)); };
}
const WallClock noon = at(1'700'000'000);

void add_steps(EventFiles& files, std::int64_t first, std::int64_t end, double value = 0) {
  for (std::int64_t step = first; step < end; ++step) files.add(step, {{"x", value}});
}

}  // namespace

TEST_CASE("event files: a start writes version, START and its points to a file of its own") {
  const TestDir dir;
  const fs::path folder = dir / "run" / "tensorboard";
  {
    EventFiles files(folder, {.first_step = 3}, noon);
    files.add(3, {});
    CHECK_FALSE(fs::exists(dir / "run"));  // nothing is touched before the first point
    add_steps(files, 3, 5);
  }
  const auto names = event_files_in(folder);
  REQUIRE(names.size() == 1);
  CHECK(names[0].filename().string().starts_with("events.out.tfevents.1700000000."));
  const auto events = read_event_file(names[0]);
  REQUIRE(events.size() == 4);
  CHECK(events[0].version == "brain.Event:2");
  CHECK(events[0].step == 0);
  CHECK(events[1].start);
  CHECK(events[1].step == 3);
  for (const ReadEvent& event : events) CHECK(event.time == 1'700'000'000);
  CHECK(events[3].scalars == std::vector<std::pair<std::string, float>>{{"x", 0}});
}

TEST_CASE("event files: a later start hides what it repeats, even when its clock went back") {
  const TestDir dir;
  for (const std::int64_t seconds : {1'700'000'000, 1'700'000'000, 1'600'000'000}) {
    EventFiles first(dir.path(), {}, at(seconds));
    add_steps(first, 0, 6, 1);
    EventFiles resumed(dir.path(), {.first_step = 4}, at(seconds));
    add_steps(resumed, 4, 8, 2);
  }
  CHECK(event_files_in(dir.path()).size() == 6);
  const Points points = shown_points(dir.path()).at("x");
  CHECK(steps_of(points) == Steps{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(points.at(3) == 1);
  CHECK(points.at(4) == 2);
}

TEST_CASE("event files: a file that a crash has cut off is read up to there, and the next start goes on") {
  const TestDir dir;
  {
    EventFiles files(dir.path(), {}, noon);
    add_steps(files, 0, 3);
  }
  const fs::path file = event_files_in(dir.path()).at(0);
  fs::resize_file(file, fs::file_size(file) - 1);
  CHECK(steps_of(shown_points(dir.path()).at("x")) == Steps{0, 1});
  EventFiles files(dir.path(), {.first_step = 2}, noon);
  add_steps(files, 2, 4);
  CHECK(steps_of(shown_points(dir.path()).at("x")) == Steps{0, 1, 2, 3});
}

TEST_CASE("event files: each point is in the file before add() returns") {
  const TestDir dir;
  EventFiles files(dir.path(), {}, noon);
  for (std::int64_t step = 0; step < 3; ++step) {
    files.add(step, {{"x", 1}, {"y", 2}});
    CHECK(read_event_file(event_files_in(dir.path()).at(0)).size() == static_cast<std::size_t>(step) + 3);
  }
}

TEST_CASE("event files: those of a branch count once it has saved a checkpoint") {
  const TestDir dir;
  const EventFiles::Start leaves{.first_step = 2, .serial = 4, .leaves_branch = true};
  {
    EventFiles files(dir.path(), {}, noon);
    add_steps(files, 0, 6, 1);
  }
  SUBCASE("kept") {
    EventFiles branch(dir.path(), leaves, noon);
    add_steps(branch, 2, 4, 2);
    CHECK(steps_of(shown_points(dir.path()).at("x")) == Steps{0, 1, 2, 3, 4, 5});
    branch.keep_branch();
    add_steps(branch, 4, 5, 2);
    branch.keep_branch();  // further checkpoints change nothing
    const Points points = shown_points(dir.path()).at("x");
    CHECK(steps_of(points) == Steps{0, 1, 2, 3, 4});
    CHECK(points.at(1) == 1);
    CHECK(points.at(2) == 2);
    CHECK(event_files_in(dir.path()).size() == 2);
  }
  SUBCASE("killed without a checkpoint: the old branch goes on") {
    {
      EventFiles branch(dir.path(), leaves, noon);
      add_steps(branch, 2, 4, 2);
    }
    EventFiles next(dir.path(), {.first_step = 6, .serial = 4}, noon);
    add_steps(next, 6, 8, 3);
    CHECK(steps_of(shown_points(dir.path()).at("x")) == Steps{0, 1, 2, 3, 4, 5, 6, 7});
    CHECK(shown_points(dir.path()).at("x").at(3) == 1);
    CHECK(steps_of(shown_points(dir / "abandoned").at("x")) == Steps{2, 3});
  }
  SUBCASE("killed between the checkpoint and keep_branch()") {
    {
      EventFiles branch(dir.path(), leaves, noon);
      add_steps(branch, 2, 4, 2);
    }
    EventFiles next(dir.path(), {.first_step = 4, .serial = 5}, noon);
    add_steps(next, 4, 6, 3);
    const Points points = shown_points(dir.path()).at("x");
    CHECK(steps_of(points) == Steps{0, 1, 2, 3, 4, 5});
    CHECK(points.at(2) == 2);
    CHECK_FALSE(fs::exists(dir / "abandoned"));
  }
  SUBCASE("removed by a user before the checkpoint") {
    EventFiles branch(dir.path(), leaves, noon);
    add_steps(branch, 2, 4, 2);
    for (const auto& entry : fs::directory_iterator(dir.path()))
      if (entry.path().filename().string().starts_with("branch_")) fs::remove(entry.path());
    branch.keep_branch();
    add_steps(branch, 4, 5, 2);
    CHECK(steps_of(shown_points(dir.path()).at("x")) == Steps{0, 1, 4});
  }
}

TEST_CASE("event files: files of other names are left alone") {
  const TestDir dir;
  for (const char* name : {"branch_x.1", "branch_3", "events.out.tfevents.x", "notes"})
    spit(dir / name, "mine");
  EventFiles files(dir.path(), {.serial = 9}, noon);
  add_steps(files, 0, 1);
  for (const char* name : {"branch_x.1", "branch_3", "events.out.tfevents.x", "notes"})
    CHECK(slurp(dir / name) == "mine");
}

TEST_CASE("event files: a removed file is begun anew; a place that cannot be written is an Error") {
  const TestDir dir;
  EventFiles files(dir / "a", {}, noon);
  add_steps(files, 0, 2);
  fs::remove_all(dir / "a");
  add_steps(files, 2, 3);
  CHECK(steps_of(shown_points(dir / "a").at("x")) == Steps{2});
  CHECK(read_event_file(event_files_in(dir / "a").at(0)).at(0).version == "brain.Event:2");
  spit(dir / "b", "a file");
  EventFiles refused(dir / "b", {}, noon);
  CHECK_THROWS_WITH_AS(refused.add(0, {{"x", 0}}), doctest::Contains("cannot"), Error);
}
