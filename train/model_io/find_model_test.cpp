#include "train/model_io/find_model.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>

#include "core/error.h"
#include "data/json/test_dir.h"
#include "tests/support/message_of.h"

using namespace nemocube;
using nemocube::testing::message_of;
using nemocube::testing::TestDir;
namespace fs = std::filesystem;

namespace {

void touch(const fs::path& path) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << "{}";
}

}  // namespace

TEST_CASE("a model is found in a Hugging Face directory, a checkpoint and a run") {
  const TestDir dir;
  const fs::path run = dir / "run", last = run / "epoch_0_step_9", best = run / "epoch_0_step_4";
  for (const fs::path& checkpoint : {last, best}) {
    touch(checkpoint / "model" / "config.json");
    touch(checkpoint / "model" / "tokenizer.json");
  }
  fs::create_directory_symlink("epoch_0_step_9", run / "LATEST");
  fs::create_directory_symlink(fs::absolute(best), run / "LOWEST_VAL");
  touch(dir / "hf" / "config.json");
  fs::create_directory_symlink("hf", dir / "link");

  CHECK(find_model(dir / "hf") == dir / "hf");
  CHECK(find_model(dir / "hf" / "") == dir / "hf");
  CHECK(find_model(dir / "link") == dir / "link");
  CHECK(find_model(run) == last / "model");
  CHECK(find_model(run / "") == last / "model");
  CHECK(find_model(run / "LATEST") == last / "model");
  CHECK(find_model(run / "LATEST" / "") == last / "model");
  CHECK(find_model(run / "LOWEST_VAL") == fs::absolute(best) / "model");
  CHECK(find_model(best) == best / "model");
  CHECK(find_model(best / "model") == best / "model");
  CHECK(find_tokenizer(run) == last / "model");
  CHECK(find_tokenizer(last / "model" / "tokenizer.json") == last / "model" / "tokenizer.json");
}

TEST_CASE("where no model is, the message names the places looked at") {
  const TestDir dir;
  fs::create_directories(dir / "empty");
  fs::create_directories(dir / "run");
  fs::create_directory_symlink("epoch_0_step_9", dir / "run" / "LATEST");
  touch(dir / "file.json");
  for (const char* name : {"empty", "run"}) {
    const std::string message = message_of([&] { find_model(dir / name); });
    CHECK(message == cat((dir / name).string(),
                         ": holds no model: there is neither config.json nor model/config.json (as in a "
                         "checkpoint) nor LATEST/model/config.json (as in the directory of a run)"));
  }
  CHECK(message_of([&] { find_model("nvidia/nothing"); }).find("nothing is downloaded") != std::string::npos);
  CHECK(message_of([&] { find_tokenizer("nvidia/nothing"); }).find("want a tokenizer") != std::string::npos);
  CHECK(message_of([&] { find_adapter("nothing"); }).find("want an adapter") != std::string::npos);
  CHECK(message_of([&] { find_model(dir / "file.json"); }).find("is a file") != std::string::npos);
}

TEST_CASE("an adapter is found like a model, and names its model") {
  const TestDir dir;
  const fs::path last = dir / "run" / "epoch_0_step_9";
  touch(dir / "base" / "config.json");
  touch(dir / "other" / "adapter_config.json");
  const auto write = [&](const std::string& base) {
    touch(last / "model" / "adapter_config.json");
    std::ofstream(last / "model" / "adapter_config.json")
        << R"({"peft_type": "LORA", "base_model_name_or_path": )" << base << "}";
  };
  write('"' + (dir / "base").string() + '"');
  fs::create_directory_symlink("epoch_0_step_9", dir / "run" / "LATEST");
  CHECK(find_adapter(dir / "run") == last / "model");
  for (const fs::path& named : {dir / "run", last, last / "model"}) {
    CHECK(find_model_and_adapter(named, {}).model == dir / "base");
    CHECK(find_model_and_adapter(named, {}).adapter == last / "model");
  }
  CHECK(find_model_and_adapter(dir / "base", dir / "run").adapter == last / "model");
  CHECK(find_model_and_adapter(dir / "base", {}).adapter.empty());
  const auto fault = [&](const fs::path& named, const fs::path& adapter = {}) {
    return message_of([&] { find_model_and_adapter(named, adapter); });
  };
  CHECK(
      fault(dir / "run", dir / "other").find(" is an adapter; want a model where another adapter is named") !=
      std::string::npos);
  CHECK(fault(dir / "base", dir / "base").find(": holds no adapter: there is neither adapter_config.json") !=
        std::string::npos);
  write("null");
  CHECK(fault(dir / "run").find("base_model_name_or_path is null; name the model") != std::string::npos);
  write("\"/nowhere\"");
  CHECK(fault(dir / "run").find("base_model_name_or_path: /nowhere: does not exist") != std::string::npos);
}

TEST_CASE("an adapter in the local cache of the Hub serves as a model") {
  const TestDir dir;
  const fs::path snapshot = dir / "models--me--adapter" / "snapshots" / "x";
  touch(dir / "base" / "config.json");
  touch(snapshot / "adapter_config.json");
  std::ofstream(snapshot / "adapter_config.json")
      << R"({"peft_type": "LORA", "base_model_name_or_path": ")" << (dir / "base").string() << "\"}";
  const char* before = std::getenv("HF_HUB_CACHE");
  const std::string kept = before ? before : "";
  ::setenv("HF_HUB_CACHE", dir.path().c_str(), 1);
  const ModelAndAdapter found = find_model_and_adapter("me/adapter", {});
  before ? ::setenv("HF_HUB_CACHE", kept.c_str(), 1) : ::unsetenv("HF_HUB_CACHE");
  CHECK(found.model == dir / "base");
  CHECK(found.adapter == snapshot);
}
