#include "train/checkpoint/checkpoint_folder.h"

#include <doctest/doctest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "train/checkpoint/test_drawn_run.h"

using namespace nemocube;
using namespace nemocube::testing;
namespace fs = std::filesystem;

// The folder of a run's checkpoints: which checkpoint is found, which are removed, and what killed runs
// leave.

TEST_CASE("checkpoint: which one is found") {
  const TestDir dir;
  CheckpointSection section = section_in(dir);
  const auto find = [&] { return Checkpoints(section, "").find(); };
  CHECK_FALSE(find().has_value());
  const DrawnRun t(DType::f32, 3, OptimizerKind::adamw, "-");
  Checkpoints checkpoints(section, "");
  for (const std::int64_t step : {2, 10, 9}) {
    const fs::path at = checkpoints.save(t.loaded, *t.optimizer, state_after(step));
    checkpoints.note_losses(at, {{"default", step == 2 ? 1.0 : 2.0}});
  }
  const fs::path runs = dir / "runs";
  CHECK(fs::read_symlink(runs / "LATEST") == "epoch_1_step_8");
  CHECK(fs::read_symlink(runs / "LOWEST_VAL") == "epoch_1_step_1");
  // The checkpoint written last is found, although another one has a higher step.
  CHECK(find()->filename() == "epoch_1_step_8");
  // That checkpoint is damaged now, so the highest step among the others is found.
  const std::string state = slurp(runs / "epoch_1_step_8" / "state.json");
  fs::remove(runs / "epoch_1_step_8" / "state.json");
  CHECK(find()->filename() == "epoch_1_step_9");
  fs::remove(runs / "LATEST");
  CHECK(find()->filename() == "epoch_1_step_9");
  fs::create_directory_symlink("epoch_1_step_77", runs / "LATEST");
  CHECK(find()->filename() == "epoch_1_step_9");
  fs::create_directories(runs / "epoch_1_step_100");
  CHECK(find()->filename() == "epoch_1_step_9");
  // Folders that are no checkpoints: one half-written, so without a final name, and one of another name.
  fs::create_directories(runs / "epoch_1_step_99.tmp");
  fs::create_directories(runs / "epoch_x_step_");
  CHECK(find()->filename() == "epoch_1_step_9");
  spit(runs / "epoch_1_step_8" / "state.json", state);
  fs::remove(runs / "LATEST");
  fs::create_directory_symlink("epoch_1_step_8", runs / "LATEST");
  for (const auto& [name, want] : std::vector<std::pair<std::string, std::string>>{
           {"LATEST", "epoch_1_step_8"},
           {"LOWEST_VAL", "epoch_1_step_1"},
           {"epoch_1_step_9", "epoch_1_step_9"},
           {(runs / "epoch_1_step_1").string(), "epoch_1_step_1"}}) {
    section.restore_from = name;
    CHECK(find()->filename() == want);
  }
  section.restore_from = "epoch_0_step_77";
  CHECK_THROWS_WITH_AS(find(), doctest::Contains("epoch_0_step_77"), Error);
}

TEST_CASE("checkpoint: where none is whole, the likeliest is found and refused, not passed over") {
  const TestDir dir;
  Checkpoints checkpoints(section_in(dir), "");
  const DrawnRun t(DType::f32, 3, OptimizerKind::adamw, "-");
  const fs::path at = checkpoints.save(t.loaded, *t.optimizer, state_after(3));
  fs::remove(at / "state.json");
  REQUIRE(checkpoints.find() == at);
  CHECK_THROWS_WITH_AS(checkpoints.load(at, *t.loaded.model, *t.optimizer), doctest::Contains("state.json"),
                       Error);
}

TEST_CASE("checkpoint: LOWEST_VAL is the saved one with the lowest loss, the first of equals") {
  const TestDir dir;
  CheckpointSection section = section_in(dir);
  std::optional<Checkpoints> checkpoints(std::in_place, section, "");
  const DrawnRun t(DType::f32, 4, OptimizerKind::adamw, "-");
  const fs::path link = dir / "runs" / "LOWEST_VAL";
  const auto lowest_after = [&](std::int64_t step, double loss, double other) {
    const fs::path at = checkpoints->save(t.loaded, *t.optimizer, state_after(step));
    checkpoints->note_losses(at, {{"default", loss}, {"other", other}});
    return fs::exists(link) ? fs::read_symlink(link).string() : "none";
  };
  CHECK(lowest_after(1, std::nan(""), 0.5) == "none");
  CHECK(lowest_after(2, 0.1 + 0.2, 0.7) == "epoch_1_step_1");
  CHECK(lowest_after(3, std::numeric_limits<double>::infinity(), 0.6) == "epoch_1_step_1");
  CHECK(lowest_after(4, 0.1 + 0.2, 0.8) == "epoch_1_step_1");
  CHECK(lowest_after(5, 0.3, 0.9) == "epoch_1_step_4");  // 0.1 + 0.2 is more than 0.3
  // A later process reads the losses from the checkpoints, here those of another validation set. A checkpoint
  // whose losses.json is damaged is no candidate.
  section.best_metric_key = "other";
  checkpoints.emplace(section, "");
  CHECK(lowest_after(6, 9, 9) == "epoch_1_step_0");
  spit(dir / "runs" / "epoch_1_step_0" / "losses.json", "{");
  CHECK(lowest_after(7, 9, 9) == "epoch_1_step_2");
}

TEST_CASE("checkpoint: old ones go, but not the newest nor the best") {
  const TestDir dir;
  CheckpointSection section = section_in(dir);
  section.max_recent_checkpoints = 2;
  Checkpoints checkpoints(section, "");
  const DrawnRun t(DType::f32, 4, OptimizerKind::adamw, "-");
  for (std::int64_t step = 1; step <= 5; ++step)
    checkpoints.note_losses(checkpoints.save(t.loaded, *t.optimizer, state_after(step)),
                            {{"default", step == 2 ? 1.0 : 2.0}});
  CHECK(names_in(dir / "runs") == std::vector<std::string>{"LATEST", "LOWEST_VAL", "epoch_1_step_1",
                                                           "epoch_1_step_3", "epoch_1_step_4"});
}

TEST_CASE("checkpoint: a run that goes back leaves the other branch aside when it first saves") {
  const TestDir dir;
  CheckpointSection section = section_in(dir);
  section.max_recent_checkpoints = 3;
  const fs::path runs = dir / "runs";
  const DrawnRun t(DType::f32, 4, OptimizerKind::adamw, "-");
  const auto names = [](const fs::path& folder) { return names_in(folder); };
  {
    Checkpoints first(section, "");
    for (const std::int64_t step : {2, 4, 6})
      first.note_losses(first.save(t.loaded, *t.optimizer, state_after(step)),
                        {{"default", 10.0 - static_cast<double>(step)}});
    spit(runs / "epoch_1_step_5" / "stray", "x");
  }
  const Names old{"LATEST", "LOWEST_VAL", "epoch_1_step_1", "epoch_1_step_3", "epoch_1_step_5"};
  Checkpoints second(section, "");
  second.load(runs / "epoch_1_step_1", *t.loaded.model, *t.optimizer);
  CHECK(names(runs) == old);  // nothing moves before the branch has its first checkpoint
  second.save(t.loaded, *t.optimizer, state_after(6));
  CHECK(names(runs) == Names{"LATEST", "LOWEST_VAL", "abandoned", "epoch_1_step_1", "epoch_1_step_5"});
  CHECK(names(runs / "abandoned") == Names{"epoch_1_step_3", "epoch_1_step_5"});
  CHECK(fs::exists(runs / "abandoned" / "epoch_1_step_5" / "stray"));
  CHECK_FALSE(fs::exists(runs / "epoch_1_step_5" / "stray"));
  CHECK(fs::read_symlink(runs / "LATEST") == "epoch_1_step_5");
  CHECK(fs::read_symlink(runs / "LOWEST_VAL") == "epoch_1_step_1");
  CHECK(second.find()->filename() == "epoch_1_step_5");
  // Later checkpoints of the branch stay, and max_recent_checkpoints counts only the branch's.
  for (const std::int64_t step : {7, 8}) second.save(t.loaded, *t.optimizer, state_after(step));
  CHECK(names(runs) == Names{"LATEST", "LOWEST_VAL", "abandoned", "epoch_1_step_1", "epoch_1_step_5",
                             "epoch_1_step_6", "epoch_1_step_7"});
  CHECK(names(runs / "abandoned") == Names{"epoch_1_step_3", "epoch_1_step_5"});
  // restore_from finds the checkpoints of the old branch.
  section.restore_from = "abandoned/epoch_1_step_5";
  CHECK(Checkpoints(section, "").find() == fs::canonical(runs / "abandoned" / "epoch_1_step_5"));
}

TEST_CASE("checkpoint: a kill before LATEST moves costs nothing: the newest of the branch is found") {
  const TestDir dir;
  CheckpointSection section = section_in(dir);
  const fs::path runs = dir / "runs";
  const DrawnRun t(DType::f32, 8, OptimizerKind::adamw, "-");
  {
    Checkpoints first(section, "");
    for (const std::int64_t step : {2, 4, 6}) first.save(t.loaded, *t.optimizer, state_after(step));
  }
  point_to(runs / "LATEST",
           "epoch_1_step_3");  // a kill came between the rename of the third checkpoint and this link
  Checkpoints next(section, "");
  CHECK(next.find() == runs / "epoch_1_step_5");
  next.recover();
  CHECK(fs::read_symlink(runs / "LATEST") == "epoch_1_step_5");
  CHECK_FALSE(fs::exists(runs / "abandoned"));

  // The same kill in a run that went back to step 1: the checkpoint that this run wrote is found, not the
  // higher step of the old branch.
  {
    Checkpoints back(section, "");
    back.load(runs / "epoch_1_step_1", *t.loaded.model, *t.optimizer);
    CHECK(back.to_be_abandoned() == 2);
    back.save(t.loaded, *t.optimizer, state_after(3));
    CHECK(back.to_be_abandoned() == 0);
  }
  for (const char* name : {"epoch_1_step_3", "epoch_1_step_5"})
    fs::rename(runs / "abandoned" / name, runs / name);
  point_to(runs / "LATEST", "epoch_1_step_5");
  Checkpoints after(section, "");
  CHECK(after.find() == runs / "epoch_1_step_2");
  after.recover();
  CHECK(names_in(runs) == Names{"LATEST", "abandoned", "epoch_1_step_1", "epoch_1_step_2"});
  CHECK(names_in(runs / "abandoned") == Names{"epoch_1_step_3", "epoch_1_step_5"});
  CHECK(fs::read_symlink(runs / "LATEST") == "epoch_1_step_2");
  // restore_from may still name an older checkpoint.
  section.restore_from = "epoch_1_step_1";
  CHECK(Checkpoints(section, "").find() == fs::canonical(runs / "epoch_1_step_1"));
}

TEST_CASE("checkpoint: a kill before the last rename costs nothing either, once every byte is written") {
  const TestDir dir;
  const CheckpointSection section = section_in(dir);
  const fs::path runs = dir / "runs";
  const DrawnRun t(DType::f32, 8, OptimizerKind::adamw, "-");
  Checkpoints first(section, "");
  for (const std::int64_t step : {2, 4}) first.save(t.loaded, *t.optimizer, state_after(step));
  const auto stage = [&] { fs::rename(runs / "epoch_1_step_3", runs / ".epoch_1_step_3.123.4.tmp"); };
  stage();
  point_to(runs / "LATEST", "epoch_1_step_1");
  Checkpoints(section, "").recover();
  CHECK(names_in(runs) == Names{"LATEST", "epoch_1_step_1", "epoch_1_step_3"});
  CHECK(Checkpoints(section, "").find() == runs / "epoch_1_step_3");
  CHECK(fs::read_symlink(runs / "LATEST") == "epoch_1_step_3");
  // A staged checkpoint is removed when its last file, checksums.json, is missing, and when a checkpoint of
  // its final name exists.
  stage();
  fs::remove(runs / ".epoch_1_step_3.123.4.tmp" / "checksums.json");
  fs::copy(runs / "epoch_1_step_1", runs / ".epoch_1_step_1.123.5.tmp", fs::copy_options::recursive);
  Checkpoints(section, "").recover();
  CHECK(names_in(runs) == Names{"LATEST", "epoch_1_step_1"});
}

TEST_CASE("checkpoint: what killed runs left is removed, and nothing else") {
  const TestDir dir;
  CheckpointSection section = section_in(dir);
  const fs::path runs = dir / "runs";
  const DrawnRun t(DType::f32, 8, OptimizerKind::adamw, "-");
  Checkpoints checkpoints(section, "");
  const fs::path at = checkpoints.save(t.loaded, *t.optimizer, state_after(2));
  fs::create_directories(runs / ".epoch_1_step_9.1.2.tmp" / "model");
  fs::create_directories(runs / ".pruned_epoch_1_step_0.1.2.tmp" / "model");
  spit(runs / ".pruned_epoch_1_step_0.1.2.tmp" / "checksums.json", "{}");
  fs::create_directory_symlink("epoch_1_step_1", runs / ".LATEST.1.2.tmp");
  fs::create_directory_symlink("nowhere", runs / ".LOWEST_VAL.1.2.tmp");
  for (const char* name : {".training.jsonl.1.2.tmp", ".validation.jsonl.1.2.tmp",
                           ".validation_x.jsonl.1.2.tmp", ".training.jsonl.branch_3.1.2.tmp"})
    spit(runs / name, "x");
  for (const char* name : {".losses.json.1.2.tmp", ".checksums.json.1.2.tmp"}) spit(at / name, "x");
  for (const char* name : {".mine.1.2.tmp", "training.jsonl", ".training.jsonl"}) spit(runs / name, "x");
  spit(at / ".mine.1.2.tmp", "x");
  checkpoints.recover();
  CHECK(names_in(runs) ==
        Names{".mine.1.2.tmp", ".training.jsonl", "LATEST", "epoch_1_step_1", "training.jsonl"});
  CHECK(names_in(at) ==
        Names{".mine.1.2.tmp", "checksums.json", "config.yaml", "model", "optim", "state.json"});
}

TEST_CASE("checkpoint: pruning takes the name away before the bytes") {
  const TestDir dir;
  CheckpointSection section = section_in(dir);
  section.max_recent_checkpoints = 1;
  const fs::path runs = dir / "runs";
  const DrawnRun t(DType::f32, 8, OptimizerKind::adamw, "-");
  Checkpoints checkpoints(section, "");
  checkpoints.save(t.loaded, *t.optimizer, state_after(2));
  // A test cannot kill a process in the middle of a removal. Instead, inotify tells whether the folder was
  // renamed before it was removed.
  const int watch = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  REQUIRE(watch >= 0);
  REQUIRE(::inotify_add_watch(watch, runs.c_str(), IN_DELETE | IN_MOVED_FROM) >= 0);
  checkpoints.save(t.loaded, *t.optimizer, state_after(3));
  alignas(inotify_event) std::array<char, 16384> buffer{};
  const ssize_t size = ::read(watch, buffer.data(), buffer.size());
  ::close(watch);
  std::vector<std::pair<bool, std::string>> gone;  // (whether it was renamed, its name)
  for (ssize_t at = 0; at < size;) {
    const auto* event = reinterpret_cast<const inotify_event*>(buffer.data() + at);
    gone.emplace_back((event->mask & IN_MOVED_FROM) != 0, event->name);
    at += static_cast<ssize_t>(sizeof *event + event->len);
  }
  CHECK(std::ranges::count(gone, std::pair(true, std::string("epoch_1_step_1"))) == 1);
  CHECK(std::ranges::count(gone, std::pair(false, std::string("epoch_1_step_1"))) == 0);
  CHECK(names_in(runs) == Names{"LATEST", "epoch_1_step_2"});
}
