#include "train/run/tensorboard_folder.h"

#include <doctest/doctest.h>

#include <optional>

#include "data/json/test_dir.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;
namespace fs = std::filesystem;

namespace {

std::string fault(const fs::path& folder, const fs::path& run) {
  return message_of([&] { const TensorboardFolder opened(folder, run); });
}

}  // namespace

TEST_CASE("tensorboard folder: one run at a time, and after its end the same run alone") {
  const TestDir dir;
  for (const char* run : {"a", "b"}) fs::create_directories(dir / run);
  std::optional<TensorboardFolder> first(std::in_place, dir / "events", dir / "a");
  CHECK(fault(dir / "events", dir / "b") ==
        cat((dir / "events").string(),
            ": another run is at work here; wait for its end or name another tensorboard.tensorboard_dir"));
  first->claim();
  first.reset();
  CHECK(fault(dir / "events", dir / "b") ==
        cat("tensorboard.tensorboard_dir: ", (dir / "events").string(),
            " has the event files of another run, that of ", (dir / "a").string(),
            "; want a folder for this run alone, which null makes in checkpoint.checkpoint_dir"));
  fs::create_directory_symlink("a", dir / "link");
  for (const char* same : {"a", "a/", "link", "b/../a"})
    CHECK(fault(dir / "events", dir.path() / same) == "no error");
  fs::remove_all(dir / "a");
  CHECK(fault(dir / "events", dir / "b") == "no error");
}

TEST_CASE("tensorboard folder: one in the checkpoint directory moves with it, and is no other run's") {
  const TestDir dir;
  fs::create_directories(dir / "b");
  TensorboardFolder(dir.path() / "a" / "tensorboard", dir / "a").claim();
  CHECK(fault(dir.path() / "a" / "tensorboard", dir / "b").find("of another run") != std::string::npos);
  fs::rename(dir / "a", dir / "moved");
  CHECK(fault(dir.path() / "moved" / "tensorboard", dir / "moved") == "no error");
}

TEST_CASE("tensorboard folder: nothing stays of one that was not used") {
  const TestDir dir;
  { const TensorboardFolder unused(dir.path() / "a" / "tensorboard", dir / "a"); }
  CHECK(names_in(dir.path()).empty());
}
