#include "train/model_io/base_model.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "core/log.h"
#include "data/hf/frozen_weights.h"
#include "data/json/test_dir.h"
#include "tests/support/message_of.h"
#include "tests/support/paths.h"
#include "train/checkpoint/checksums.h"

using namespace nemocube;
using namespace nemocube::testing;
namespace fs = std::filesystem;

namespace {

void copy_golden(const fs::path& to, const char* name = "all_four") {
  fs::create_directories(to);
  for (const auto& entry : fs::directory_iterator(source_dir() / "tests/goldens" / name))
    if (entry.path().filename().string().starts_with("model") || entry.path().filename() == "config.json")
      fs::copy_file(entry.path(), to / entry.path().filename(), fs::copy_options::overwrite_existing);
}

/// Changes a bit of each 512th byte of the second half, as training changes weights all over.
void change_weights(const fs::path& file) {
  std::string bytes = slurp(file);
  for (std::size_t i = bytes.size() - 1; i > bytes.size() / 2; i -= 512)
    bytes[i] = static_cast<char>(bytes[i] ^ 1);
  spit(file, bytes);
}

void write_record(const fs::path& adapter, const fs::path& base) {
  fs::create_directories(adapter);
  spit(adapter / base_model_file, base_model_text(record_of_base(base)));
}

std::string fault(const fs::path& adapter, const fs::path& model) {
  return message_of([&] { want_base_of_adapter(adapter, model); });
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

struct Warnings {
  Warnings() {
    set_log_listener([this](LogLevel, const std::string& text) { texts.push_back(text); });
  }
  ~Warnings() { set_log_listener({}); }
  std::vector<std::string> texts;
};

}  // namespace

TEST_CASE("base model: an adapter's base is known by its files, and only named differently with a warning") {
  for (const char* golden : {"all_four", "bf16_stored"}) {
    CAPTURE(golden);
    const TestDir dir;
    copy_golden(dir / "base", golden);
    copy_golden(dir / "same", golden);
    fs::create_directory_symlink("base", dir / "link");
    write_record(dir / "adapter", dir / "link");
    CHECK(read_base_record(dir / "adapter")->path == fs::canonical(dir / "base"));
    {
      const Warnings warnings;
      CHECK(fault(dir / "adapter", dir / "base") == "no error");
      CHECK(fault(dir / "adapter", dir / "link") == "no error");
      CHECK(warnings.texts.empty());
      CHECK(fault(dir / "adapter", dir / "same") == "no error");
      REQUIRE(warnings.texts.size() == 1);
      CHECK(has(warnings.texts[0], cat("was trained on ", (dir / "base").string(), ", and is used with ",
                                       (dir / "same").string())));
    }
    // What the link leads to now is another model.
    const bool several = fs::exists(dir.path() / "same" / "model.safetensors.index.json");
    const std::string weights = several ? "model-00002-of-00002.safetensors" : "model.safetensors";
    change_weights(dir.path() / "same" / weights);
    fs::remove(dir / "link");
    fs::create_directory_symlink("same", dir / "link");
    CHECK(fault(dir / "adapter", dir / "link") == cat((dir.path() / "adapter" / base_model_file).string(),
                                                      ": want the model that the adapter was trained on, ",
                                                      (dir / "base").string(), ", got ",
                                                      (dir / "same").string(), ": ", weights,
                                                      " has other weights of the same length. A copy of the "
                                                      "adapter without base_model.json is used with any "
                                                      "model that it fits"));
    spit(dir.path() / "base" / "config.json", slurp(dir.path() / "base" / "config.json") + "\n");
    CHECK(has(fault(dir / "adapter", dir / "base"), "which has changed since: config.json has "));
    fs::remove(dir.path() / "adapter" / base_model_file);
    CHECK(fault(dir / "adapter", dir / "same") == "no error");  // of another program
  }
}

TEST_CASE("base model: a snapshot of the Hub is known by its name and revision, wherever the cache is") {
  const TestDir dir;
  const auto snapshot = [&](const char* cache, const char* revision) {
    return dir.path() / cache / "models--nvidia--Nano-9B" / "snapshots" / revision;
  };
  copy_golden(snapshot("here", "5f2c"));
  copy_golden(snapshot("there", "5f2c"));
  copy_golden(snapshot("here", "77aa"));
  const ModelRecord record = record_of_base(snapshot("here", "5f2c"));
  CHECK(record.name == "nvidia/Nano-9B");
  CHECK(record.revision == "5f2c");
  CHECK(record.label() == "nvidia/Nano-9B (revision 5f2c)");
  CHECK_FALSE(is_in_hub_cache(record));
  ::setenv("HF_HUB_CACHE", (dir / "here").c_str(), 1);
  CHECK(is_in_hub_cache(record));
  ::unsetenv("HF_HUB_CACHE");
  write_record(dir / "adapter", snapshot("here", "5f2c"));
  const Warnings warnings;
  CHECK(fault(dir / "adapter", snapshot("there", "5f2c")) == "no error");
  CHECK(warnings.texts.empty());
  CHECK(fault(dir / "adapter", snapshot("here", "77aa")) == "no error");
  CHECK(warnings.texts.size() == 1);
}

TEST_CASE("base model: a checkpoint's own sums count, also where no sample of a weight lies") {
  const TestDir dir;
  const fs::path checkpoint = dir / "epoch_0_step_1", model = checkpoint / "model";
  copy_golden(model);
  spit(checkpoint / "state.json", "{}");
  const auto write_sums = [&](std::uint32_t crc) {
    const auto bytes = static_cast<std::int64_t>(fs::file_size(model / "model.safetensors"));
    write_checksums(checkpoint, {{"model/model.safetensors", {bytes, crc}}});
  };
  write_sums(1);
  write_record(dir / "adapter", model);
  CHECK(read_base_record(dir / "adapter")->files.at("model.safetensors").crc32c == 1);
  CHECK(fault(dir / "adapter", model) == "no error");
  write_sums(2);
  CHECK(has(fault(dir / "adapter", model), "model.safetensors has other weights of the same length"));
}

TEST_CASE("base model: a record that is damaged is refused by its place") {
  const TestDir dir;
  fs::create_directories(dir / "adapter");
  const fs::path file = dir.path() / "adapter" / base_model_file;
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"[]", ""},
           {"{\"files\": {}}", "path"},
           {R"({"path": "/x", "files": []})", "want an object"},
           {R"({"path": "/x", "files": {"a": {"bytes": "1"}}})", "bytes"},
           {R"({"path": "/x", "files": {"a": {"bytes": 1, "crc32c": "12"}}})", "eight hexadecimal digits"}}) {
    spit(file, text);
    const std::string message = message_of([&] { read_base_record(dir / "adapter"); });
    CHECK(has(message, file.string()));
    CHECK(has(message, part));
  }
}

TEST_CASE("base model: weights that were left to a directory are missed where this has others") {
  const TestDir dir;
  copy_golden(dir / "base");
  fs::create_directories(dir / "part");
  const fs::path file = dir.path() / "part" / FrozenWeights::file_name;
  spit(file, to_json_text({dir / "base", {"lm_head.weight"}, record_of_base(dir / "base")}));
  CHECK(fault_of_frozen_base(dir / "part").empty());
  CHECK(fault_of_frozen_base(dir / "base").empty());
  change_weights(dir.path() / "base" / "model.safetensors");
  CHECK(fault_of_frozen_base(dir / "part") == cat(file.string(), ": ", (dir / "base").string(),
                                                  ", which has the weights that were not trained, is another "
                                                  "model than the run had: model.safetensors has "
                                                  "other weights of the same length"));
  spit(file, to_json_text({dir / "base", {"lm_head.weight"}}));
  CHECK(fault_of_frozen_base(dir / "part").empty());  // of an older program
}
