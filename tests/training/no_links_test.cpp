// A run on a file system without symbolic links (tests/support/preload/die_at.cpp): LATEST and LOWEST_VAL are
// small files, and all that follows them finds the same checkpoint.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/support/paths.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;

ProcessResult without_links(const fs::path& dir, const Words& command) {
  Words words{"/usr/bin/env", "LD_PRELOAD=" + preload_library("die_at"), "NEMOCUBE_NO_LINKS=1",
              // The sanitizer's library comes after the preloaded one.
              cat("ASAN_OPTIONS=verify_asan_link_order=0:",
                  std::getenv("ASAN_OPTIONS") ? std::getenv("ASAN_OPTIONS") : "")};
  words.insert(words.end(), command.begin(), command.end());
  return run_process(words, dir);
}

}  // namespace

TEST_CASE("no links: a run, its continuation, and what reads it, on a file system without symbolic links") {
  const RunDir dir;
  Words check = RunDir::train_command(four_steps);
  check.emplace_back("--check");
  const ProcessResult with = run_process(check, dir.path());
  CHECK(with.exit_code == 0);
  CHECK(with.err.find("straight: LATEST and LOWEST_VAL are symbolic links") != std::string::npos);
  CHECK(without_links(dir.path(), check)
            .err.find("LATEST and LOWEST_VAL are files with the name of a checkpoint") != std::string::npos);
  CHECK_FALSE(fs::exists(dir / "straight"));

  Words two = four_steps;
  two.emplace_back("step_scheduler.max_steps=2");
  two.emplace_back("lr_scheduler=null");
  REQUIRE(without_links(dir.path(), RunDir::train_command(two)).exit_code == 0);
  const fs::path run = dir / "straight";
  REQUIRE(fs::is_regular_file(fs::symlink_status(run / "LATEST")));
  const std::string first = slurp(run / "LATEST");
  Words four = four_steps;
  four.emplace_back("lr_scheduler=null");
  const ProcessResult resumed = without_links(dir.path(), RunDir::train_command(four));
  CAPTURE(resumed.err);
  REQUIRE(resumed.exit_code == 0);
  const std::string latest = slurp(run / "LATEST"), lowest = slurp(run / "LOWEST_VAL");
  CHECK(latest != first);
  CHECK(fs::is_directory(run / latest.substr(0, latest.size() - 1)));
  CHECK(fs::is_directory(run / lowest.substr(0, lowest.size() - 1)));

  const std::string name = latest.substr(0, latest.size() - 1);
  const auto out = [&](const Words& arguments) {
    const ProcessResult done = nemocube_in(dir.path(), arguments);
    CAPTURE(arguments.front());
    CAPTURE(done.err);
    CHECK(done.exit_code == 0);
    return done.out;
  };
  for (const char* model : {"straight", "straight/LATEST", "straight/LATEST/model"})
    CHECK(out({"inspect", "--model", model, "--json"}) ==
          out({"inspect", "--model", "straight/" + name + "/model", "--json"}));
  CHECK(out({"inspect", "straight", "--json"}).find("straight/" + name) != std::string::npos);
  CHECK(out({"inspect", "straight/LATEST", "--json"}).find("straight/" + name) != std::string::npos);
  CHECK(out({"watch", "straight", "--once"}).find(name) != std::string::npos);
  out({"eval", "recipe.yaml", "--model", "straight/LATEST/model"});
  out({"convert", "straight/LOWEST_VAL", "copy"});
  CHECK(fs::exists(dir / "copy/config.json"));
  out({"tokenize", "--tokenizer", "straight/LATEST/model", "--input", "recipe.yaml"});
  out({"generate", "--model", "straight/LATEST/model", "--prompt", "Once", "--max-new-tokens", "2"});
  out({"report", "straight"});
  out({"train", "recipe.yaml", "--set", "checkpoint.restore_from=LATEST", "--set",
       "step_scheduler.max_steps=5", "--set", "lr_scheduler=null"});
}
