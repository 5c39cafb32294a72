#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

/// JSON documents: read from untrusted files, and written so that other programs accept them.
namespace nemocube {

/// A document whose objects keep the order of their keys.
using Json = nlohmann::ordered_json;

struct JsonLimits {
  std::int64_t max_bytes = std::int64_t{256} << 20;
  int max_depth = 100;
  bool non_finite = true;  ///< accept the bare tokens Infinity, -Infinity and NaN, as Python writes them
};

/// Parses a whole text. Throws Error "what: ..." with the byte (counted from 1) of a syntax error, the key
/// that an object holds twice, or the limit that is exceeded.
Json parse_json(std::string_view text, const std::string& what, const JsonLimits& limits = {});
/// Parses the contents of a regular file.
Json read_json_file(const std::filesystem::path& path, const JsonLimits& limits = {});

/// Text of a document, with `indent` spaces for each level (negative: in one line). Non-finite numbers become
/// the bare tokens that parse_json accepts; bytes that are not UTF-8 become U+FFFD.
std::string dump_json(const Json& value, int indent = 2);

/// A value as quoted in messages: "an object", "a list of 3", or its text as an excerpt.
std::string brief(const Json& value);

/// A value with its place in a file, so that every message names the file, the key, the wanted and the given
/// value:
///     config.json: 'hidden_size': want an integer, got "4096"
/// Does not own the document. A key whose value is null counts as absent.
class JsonView {
 public:
  JsonView(const Json& value, std::string file, std::string place = "");

  const Json& value() const& { return *value_; }
  const Json& value() const&& = delete;
  const std::string& file() const { return file_; }
  const std::string& place() const { return place_; }  ///< "data[0].id"; empty for the whole document

  JsonView at(const std::string& key) const;  ///< of an object; Error when absent
  std::optional<JsonView> find(const std::string& key) const;
  JsonView member(const std::string& key) const;  ///< of an object that has the key; its value may be null
  bool has(const std::string& key) const { return find(key).has_value(); }
  bool has_null(const std::string& key) const;  ///< present with the value null
  std::vector<JsonView> elements() const;       ///< of a list

  std::int64_t integer() const;
  double number() const;  ///< also {"__float__": "Infinity"}, Hugging Face's form of non-finite numbers
  bool boolean() const;
  std::string_view string() const;  ///< lives as long as the document

  /// Throws Error "file: 'place': want <wish>, got <this value>".
  [[noreturn]] void refuse(const std::string& wish) const;

 private:
  std::string place_of(const std::string& step) const;
  const Json* value_;
  std::string file_, place_;
};

}  // namespace nemocube
