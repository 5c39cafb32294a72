// Writes the inputs that fuzzers begin with, made of the goldens: corpus SOURCE FUZZER FOLDER.
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "data/json/json.h"
#include "data/json/test_dir.h"

using namespace nemocube;
namespace fs = std::filesystem;

namespace {

using Inputs = std::vector<std::string>;

/// The files below `folder` whose names end so.
Inputs files(const fs::path& folder, std::string_view end) {
  Inputs inputs;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && entry.path().filename().string().ends_with(end))
      inputs.push_back(testing::slurp(entry.path()));
  return inputs;
}

Inputs templates(const fs::path& source) {
  Inputs inputs = files(source / "tests/goldens/chat", ".jinja");
  const Json torture = read_json_file(source / "tests/goldens/chat/torture.json");
  for (const Json& snippet : torture["snippets"]) inputs.push_back(snippet["template"]);
  inputs.push_back("{{ strftime_now('%Y' ~ nul) }}");
  return inputs;
}

/// Of each file the length and the header.
Inputs headers(const fs::path& source) {
  Inputs inputs;
  for (const std::string& file : files(source / "tests/goldens", ".safetensors")) {
    std::uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof length);
    inputs.push_back(file.substr(0, 8 + length));
  }
  return inputs;
}

template <class T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// Indexes of 1, 3 and 40 sequences, with ids of each type.
Inputs indexes() {
  Inputs inputs;
  for (const int code : {1, 2, 3, 4, 5, 8})
    for (const std::int64_t sequences : {1, 3, 40}) {
      std::string bytes("MMIDIDX\0\0", 9);
      append(bytes, std::uint64_t{1});
      append(bytes, static_cast<std::uint8_t>(code));
      append(bytes, static_cast<std::uint64_t>(sequences));
      append(bytes, static_cast<std::uint64_t>(sequences + 1));
      for (std::int64_t i = 0; i < sequences; ++i) append(bytes, static_cast<std::int32_t>(5 + i % 7));
      for (std::int64_t i = 0; i < sequences; ++i) append(bytes, 80 * i);
      for (std::int64_t i = 0; i <= sequences; ++i) append(bytes, i);
      inputs.push_back(bytes);
    }
  return inputs;
}

Inputs inputs_of(const std::string& fuzzer, const fs::path& source) {
  const fs::path goldens = source / "tests/goldens";
  if (fuzzer == "jinja") return templates(source);
  if (fuzzer == "recipe") return files(source / "configs", ".yaml");
  if (fuzzer == "tokenizer") return files(goldens / "tokenizer", "tokenizer.json");
  if (fuzzer == "safetensors") return headers(source);
  if (fuzzer == "megatron") return indexes();
  if (fuzzer == "adapter") {
    Inputs inputs = files(goldens, "adapter_config.json");
    inputs.push_back(inputs.at(0) + std::string("\0{}", 3));
    for (const std::string& config : files(goldens, "automodel_peft_config.json"))
      inputs.push_back(inputs[0] + std::string(1, '\0') + config);
    return inputs;
  }
  require(fuzzer == "config", "want the name of a fuzzer, got ", fuzzer);
  Inputs inputs = files(source / "configs", "config.json");
  for (const std::string& config : files(goldens, "config.json"))
    if (config.find("nemotron") != std::string::npos || config.find("Nemotron") != std::string::npos)
      inputs.push_back(config);
  return inputs;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: corpus SOURCE FUZZER FOLDER\n");
    return 2;
  }
  try {
    int number = 0;
    for (const std::string& input : inputs_of(argv[2], argv[1]))
      testing::spit(fs::path(argv[3]) / cat("golden", number++), input);
    expect(number > 0, "no goldens for ", argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "corpus: %s\n", error.what());
    return 1;
  }
}
