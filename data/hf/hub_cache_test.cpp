#include "data/hf/hub_cache.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "data/json/test_dir.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;

/// Sets variables for as long as the object lives.
class Variables {
 public:
  Variables() {
    for (const char* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"}) {
      const char* value = std::getenv(name);
      before_.emplace_back(name, value ? std::optional<std::string>(value) : std::nullopt);
      ::unsetenv(name);
    }
  }
  ~Variables() {
    for (const auto& [name, value] : before_) value ? ::setenv(name, value->c_str(), 1) : ::unsetenv(name);
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;
  static void set(const char* name, const fs::path& value) { ::setenv(name, value.c_str(), 1); }

 private:
  std::vector<std::pair<const char*, std::optional<std::string>>> before_;
};

}  // namespace

TEST_CASE("hub cache: where it is") {
  const Variables variables;
  Variables::set("HOME", "/home/me");
  CHECK(hub_cache() == "/home/me/.cache/huggingface/hub");
  Variables::set("XDG_CACHE_HOME", "/cache");
  CHECK(hub_cache() == "/cache/huggingface/hub");
  Variables::set("HF_HOME", "/hf");
  CHECK(hub_cache() == "/hf/hub");
  Variables::set("HF_HUB_CACHE", "/hub");
  CHECK(hub_cache() == "/hub");
}

TEST_CASE("hub cache: names become the snapshot that refs/main names, or the only one") {
  const Variables variables;
  const TestDir dir;
  Variables::set("HF_HUB_CACHE", dir / "hub");
  const fs::path model = dir / "hub" / "models--nvidia--Nano", rows = dir / "hub" / "datasets--me--rows";
  const auto of = [](const char* name, HubKind kind = HubKind::model) { return path_or_cached(name, kind); };
  CHECK(of("nvidia/Nano") == "nvidia/Nano");
  fs::create_directories(model / "snapshots" / "aaa");
  CHECK(of("nvidia/Nano") == model / "snapshots" / "aaa");
  fs::create_directories(model / "snapshots" / "bbb");
  CHECK(message_of([&] { of("nvidia/Nano"); }) ==
        cat("nvidia/Nano: ", model.string(),
            " holds 2 snapshots and no refs/main that names one: aaa, bbb; want the path "
            "of one of them"));
  fs::create_directories(model / "refs");
  std::ofstream(model / "refs" / "main") << "bbb";
  CHECK(of("nvidia/Nano") == model / "snapshots" / "bbb");
  CHECK(of("nvidia/Nano", HubKind::dataset) == "nvidia/Nano");
  fs::create_directories(rows / "snapshots" / "ccc");
  CHECK(of("me/rows", HubKind::dataset) == rows / "snapshots" / "ccc");
  // A ref that leads elsewhere is none.
  std::ofstream(model / "refs" / "main") << "../../../other";
  CHECK(message_of([&] { of("nvidia/Nano"); }).find(": names no snapshot in ") != std::string::npos);
  std::ofstream(model / "refs" / "main") << "ccc";
  CHECK(message_of([&] { of("nvidia/Nano"); }).ends_with(": 'ccc'"));
  // What exists, and what is no name of the Hub, is taken as it is.
  for (const char* path : {"nvidia", "/nvidia/Nano", "./nvidia/Nano", "~/Nano", "a/b/c", "a/", ""})
    CHECK(of(path) == path);
  const fs::path before = fs::current_path();
  fs::create_directories(dir / "here" / "nvidia" / "Nano");
  fs::current_path(dir / "here");
  CHECK(of("nvidia/Nano") == "nvidia/Nano");
  fs::current_path(before);
}
