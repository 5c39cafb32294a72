#pragma once
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/json/json.h"
#include "tests/support/paths.h"
#include "tests/training/run_support.h"

/// What every mistake of a user must give: exit code 2, one message that names the trouble, nothing changed.
namespace nemocube::testing {

inline std::filesystem::path golden(const std::string& name) {
  return source_dir() / "tests" / "goldens" / name;
}
inline std::filesystem::path sample_tokenizer() { return source_dir() / "data" / "samples" / "tokenizer"; }

/// Every path below a directory with its contents; links with what they point to.
inline std::map<std::string, std::string> snapshot(const std::filesystem::path& dir) {
  std::map<std::string, std::string> all;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir)) {
    const std::string name = entry.path().lexically_relative(dir).string();
    if (entry.is_symlink())
      all[name] = "link " + std::filesystem::read_symlink(entry.path()).string();
    else
      all[name] = entry.is_regular_file() ? slurp(entry.path()) : "directory";
  }
  return all;
}

/// A log of a run, or one kept as NAME.1 and so on.
inline bool is_log(const std::string& name) { return name.find(".jsonl") != std::string::npos; }

/// Checks exit code and message of a finished run: one error, containing all of `parts`.
inline void check_message(const ProcessResult& run, const std::vector<std::string>& parts) {
  CAPTURE(run.err);
  CHECK(run.exit_code == 2);
  const std::string prefix = "\nerror: ", err = "\n" + run.err;
  const auto at = err.rfind(prefix);
  CHECK(at != std::string::npos);
  CHECK(err.find(prefix) == at);
  CHECK(run.err.find("internal error") == std::string::npos);
  CHECK(run.err.find("terminate") == std::string::npos);
  if (at == std::string::npos) return;
  for (const std::string& part : parts)
    CHECK_MESSAGE(err.find(part, at) != std::string::npos, "the message lacks: ", part);
}

/// Runs the program in `dir`, checks the message, and that nothing in `dir` was created, changed or removed;
/// with `logs_may_grow` but for logs and the directory that holds them.
inline void check_refused(const std::filesystem::path& dir, std::vector<std::string> arguments,
                          const std::vector<std::string>& parts, bool logs_may_grow = false) {
  wait_politely();
  auto before = snapshot(dir);
  arguments.insert(arguments.begin(), program());
  check_message(run_process(arguments, dir), parts);
  auto after = snapshot(dir);
  if (logs_may_grow)
    for (auto* side : {&before, &after})
      std::erase_if(*side, [](const auto& e) { return is_log(e.first) || e.second == "directory"; });
  for (const auto& [name, bytes] : after) {
    CAPTURE(name);
    CHECK(before.contains(name));
  }
  CHECK(before == after);
}

/// A copy of a directory of tests/goldens.
class ModelDir : public TestDir {
 public:
  explicit ModelDir(const std::string& name = "all_four") {
    std::filesystem::copy(golden(name), path(), std::filesystem::copy_options::recursive);
  }
  void edit_json(const std::string& file, const std::function<void(Json&)>& edit) const {
    Json json = read_json_file(path() / file);
    edit(json);
    spit(path() / file, dump_json(json));
  }
};

/// A safetensors file taken apart, to be put together wrongly.
struct RawSafetensors {
  Json header;
  std::string data;

  static RawSafetensors read(const std::filesystem::path& path) {
    const std::string bytes = slurp(path);
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    return {parse_json(bytes.substr(8, length), path.string()), bytes.substr(8 + length)};
  }
  void write(const std::filesystem::path& path) const {
    std::string text = dump_json(header, -1);
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const std::uint64_t length = text.size();
    spit(path, std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data);
  }
  template <class T>
  void fill(const std::string& name, T value) {
    const Json& offsets = header.at(name).at("data_offsets");
    for (auto at = offsets[0].get<std::size_t>(); at < offsets[1].get<std::size_t>(); at += sizeof value)
      std::memcpy(data.data() + at, &value, sizeof value);
  }
  /// The last element of an i64 tensor.
  void set_last(const std::string& name, std::int64_t value) {
    const auto end = header.at(name).at("data_offsets")[1].get<std::size_t>();
    std::memcpy(data.data() + end - sizeof value, &value, sizeof value);
  }
};

inline void edit_safetensors(const std::filesystem::path& path,
                             const std::function<void(RawSafetensors&)>& edit) {
  RawSafetensors file = RawSafetensors::read(path);
  edit(file);
  file.write(path);
}

inline const std::vector<std::string> forward_here{
    "forward", "--model", ".", "--input", "input.safetensors", "--output", "out.safetensors"};

inline std::vector<std::string> train_with(const std::vector<std::string>& overrides) {
  std::vector<std::string> command = RunDir::train_command(overrides);
  command.erase(command.begin());
  return command;
}

}  // namespace nemocube::testing
