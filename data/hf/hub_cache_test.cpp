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
    for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"}) {
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
  Variables::set("HUGGINGFACE_HUB_CACHE", "/old");
  CHECK(hub_cache() == "/old");
  Variables::set("HF_HUB_CACHE", "/hub");
  CHECK(hub_cache() == "/hub");
}

TEST_CASE("hub cache: home directories and variables as Python expands them") {
  const Variables variables;
  Variables::set("HOME", "/home/me/");
  Variables::set("NEMOCUBE_TEST_A", "x/$NEMOCUBE_TEST_A");
  const auto of = [](const char* variable, const char* value) {
    Variables::set(variable, value);
    const std::string found = hub_cache().string();
    ::unsetenv(variable);
    return found;
  };
  CHECK(of("HF_HOME", "~/x") == "/home/me/x/hub");
  CHECK(of("HF_HOME", "$HOME/x") == "/home/me//x/hub");
  CHECK(of("XDG_CACHE_HOME", "~") == "/home/me/huggingface/hub");
  for (const char* variable : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    CHECK(of(variable, "~") == "/home/me");
    CHECK(of(variable, "~/a/$NEMOCUBE_TEST_A/b") == "/home/me/a/x/$NEMOCUBE_TEST_A/b");  // not again
    CHECK(of(variable, "/${NEMOCUBE_TEST_A}") == "/x/$NEMOCUBE_TEST_A");
    CHECK(of(variable, "/a$$NEMOCUBE_TEST_A") == "/a$x/$NEMOCUBE_TEST_A");
    CHECK(of(variable, "\\$NEMOCUBE_TEST_A") == "\\x/$NEMOCUBE_TEST_A");
    for (const char* kept :
         {"/a/~", "/$NEMOCUBE_TEST_NONE/x", "${NEMOCUBE_TEST_A", "$", "a$", "${}", "$-", "~no such user/x"})
      CHECK(of(variable, kept) == kept);
    CHECK(of(variable, "~root/x") == "/root/x");
  }
  ::unsetenv("NEMOCUBE_TEST_A");
}

TEST_CASE("hub cache: messages say where was looked") {
  const Variables variables;
  Variables::set("HF_HOME", "/hf");
  CHECK(not_in_cache("nvidia/Nano", HubKind::model) ==
        ", nor in the local cache of the Hub (/hf/hub/models--nvidia--Nano)");
  CHECK(not_in_cache("me/rows", HubKind::dataset) ==
        ", nor in the local cache of the Hub (/hf/hub/datasets--me--rows)");
  CHECK(not_in_cache("/nvidia/Nano", HubKind::model).empty());
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
  std::ofstream(model / "refs" / "main") << std::string("bbb\0x", 5);
  CHECK(message_of([&] { of("nvidia/Nano"); }).find(": names no snapshot in ") != std::string::npos);
  // What exists, and what is no name of the Hub, is taken as it is.
  for (const char* path : {"nvidia", "/nvidia/Nano", "./nvidia/Nano", "~/Nano", "a/b/c", "a/", ""})
    CHECK(of(path) == path);
  const fs::path before = fs::current_path();
  fs::create_directories(dir / "here" / "nvidia" / "Nano");
  fs::current_path(dir / "here");
  CHECK(of("nvidia/Nano") == "nvidia/Nano");
  fs::current_path(before);
}
