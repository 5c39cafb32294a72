#include "data/files/link.h"

#include <doctest/doctest.h>

#include "data/json/test_dir.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;

TEST_CASE("link: a symbolic link where there are such, which leads to an entry of its folder") {
  const TestDir dir;
  fs::create_directory(dir / "epoch_0_step_1");
  CHECK(linked_name(dir / "LATEST").empty());
  CHECK(has_symbolic_links(dir.path()));
  point_link(dir / "LATEST", "epoch_0_step_1");
  CHECK(fs::is_symlink(dir / "LATEST"));
  CHECK(linked_name(dir / "LATEST") == "epoch_0_step_1");
  CHECK(through_links(dir / "LATEST" / "model") == dir / "LATEST" / "model");
  CHECK(names_in(dir.path()) == std::vector<std::string>{"LATEST", "epoch_0_step_1"});
}

TEST_CASE("link: a file that holds the name does the same under the names of links") {
  const TestDir dir;
  fs::create_directories(dir / "epoch_0_step_1" / "model");
  spit(dir / "LATEST", "epoch_0_step_1\n");
  spit(dir / "OTHER", "epoch_0_step_1\n");
  CHECK(linked_name(dir / "LATEST") == "epoch_0_step_1");
  CHECK(linked_name(dir / "OTHER").empty());
  CHECK(through_links(dir / "LATEST/model/config.json") == dir / "epoch_0_step_1/model/config.json");
  CHECK(through_links(dir / "LATEST") == dir / "epoch_0_step_1");
  CHECK(through_links(dir / "OTHER") == dir / "OTHER");
  CHECK(through_links("LATEST/model") == "LATEST/model");  // there is none here
  CHECK(through_links("a/b") == "a/b");
  CHECK(through_links("").empty());
  for (const char* text : {"", "epoch_0_step_1", "a/b\n", "..\n", "a\nb\n", "\n"}) {
    spit(dir / "LATEST", text);
    CHECK(linked_name(dir / "LATEST").empty());
    CHECK(through_links(dir / "LATEST") == dir / "LATEST");
  }
}

}  // namespace
