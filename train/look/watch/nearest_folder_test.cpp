#include "train/look/watch/nearest_folder.h"

#include <doctest/doctest.h>

#include "data/json/test_dir.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace fs = std::filesystem;

TEST_CASE("nearest folder: the first name that is not there is replaced, if one is near") {
  const TestDir dir;
  for (const char* folder : {"runs/squad_tiny/epoch_0_step_9", "runs/squad_large", "other"})
    fs::create_directories(dir / folder);
  spit(dir / "runs/squad_tine", "a file");
  const auto nearest = [&](const std::string& wanted) {
    const fs::path found = nearest_folder(dir / wanted);
    return found.empty() ? "" : fs::relative(found, dir.path()).string();
  };
  CHECK(nearest("runs/sqaud_tiny") == "runs/squad_tiny");
  CHECK(nearest("runs/squad_tin/") == "runs/squad_tiny");
  CHECK(nearest("run/squad_large") == "runs/squad_large");
  CHECK(nearest("run/squad_lage") == "runs");
  CHECK(nearest("runs/squad_tiny/epoch_0_step_8") == "runs/squad_tiny/epoch_0_step_9");
  CHECK(nearest("runs/mine") == "");  // may be about to begin
  CHECK(nearest("nothing/of/this") == "");
  CHECK(nearest("runs/squad_tiny") == "");
}
