#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "data/datasets/json_rows.h"
#include "data/json/json.h"
#include "data/json/test_dir.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/support/paths.h"

namespace nemocube::testing {

/// The tokenizer of data/samples.
inline const Tokenizer& sample_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(source_path("data/samples/tokenizer"));
  return tokenizer;
}

/// The warnings that are written while this object lives.
struct Warnings {
  Warnings() {
    set_log_listener([this](LogLevel, const std::string& text) { texts.push_back(text); });
  }
  ~Warnings() { set_log_listener({}); }
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;
  std::vector<std::string> texts{};
};

/// read(row, number) of every row of a file.
template <class Read>
auto rows_of_file(const std::filesystem::path& path, Read read, bool skip_invalid = false) {
  std::vector<decltype(read(std::declval<const JsonView&>(), std::int64_t{}))> rows;
  for_each_valid_row({path}, "rows", skip_invalid,
                     [&](const JsonView& row, std::int64_t number) { rows.push_back(read(row, number)); });
  return rows;
}

/// The message of the Error with which `read` refuses a file of this text, without the name of the file;
/// empty where `read` accepts the file.
inline std::string complaint_about(const std::string& text,
                                   const std::function<void(const std::filesystem::path&)>& read) {
  const TestDir dir;
  const std::filesystem::path file = dir / "f.jsonl";
  spit(file, text);
  try {
    read(file);
  } catch (const Error& error) {
    return std::string(error.what()).substr(file.string().size());
  }
  return "";
}

}  // namespace nemocube::testing
