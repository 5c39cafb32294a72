#pragma once
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/support/paths.h"

namespace nemocube::tok_test {

inline std::filesystem::path golden(const std::string& name) {
  return testing::source_dir() / "tests" / "goldens" / "tokenizer" / name;
}

inline nlohmann::json read_golden(const std::string& name) {
  std::ifstream in(golden(name));
  REQUIRE_MESSAGE(in.good(), name);
  return nlohmann::json::parse(in);
}

/// A new directory; the destructor removes it.
class TempDirectory {
 public:
  TempDirectory() {
    static int counter = 0;
    const std::string name = cat("nemocube_tokenizer_", ::getpid(), "_", ++counter);
    path_ = std::filesystem::temp_directory_path() / name;
    std::filesystem::create_directories(path_);
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::filesystem::path write(const std::string& name, std::string_view text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path_ / name;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline Tokenizer tokenizer_of(const nlohmann::json& document) {
  const TempDirectory directory;
  return Tokenizer::load(directory.write("tokenizer.json", document.dump()));
}

/// The error message of loading `text` as a tokenizer.json; empty when loading succeeds.
inline std::string complaint(std::string_view text) {
  const TempDirectory directory;
  try {
    Tokenizer::load(directory.write("tokenizer.json", text));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// Braces alone would make an object of a list of string pairs.
inline nlohmann::json pairs(const std::vector<std::vector<std::string>>& merges) { return merges; }

inline nlohmann::json bpe_document(const nlohmann::json& vocab, const nlohmann::json& merges) {
  return {{"version", "1.0"}, {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

}  // namespace nemocube::tok_test
