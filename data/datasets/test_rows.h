#pragma once
#include <functional>
#include <string>

#include "core/error.h"
#include "data/json/test_dir.h"
#include "data/tokenizer/tokenizer.h"

namespace nemocube::testing {

/// That of data/samples.
inline const Tokenizer& sample_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(NEMOCUBE_SOURCE_DIR "/data/samples/tokenizer");
  return tokenizer;
}

/// The message of the Error with which `read` refuses a file of this text, without the name of the file; empty where it does not.
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
