#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"

namespace nemocube::tok {

/// A value in a JSON file, with its place, so that every message names file and place. Does not own the
/// document. All accessors throw Error when the value has another type.
class JsonRef {
 public:
  JsonRef(const nlohmann::json& value, const std::string& file, std::string where)
      : value_(&value), file_(&file), where_(std::move(where)) {}

  const nlohmann::json& value() const { return *value_; }
  bool is_object() const;
  bool is_array() const;
  bool is_string() const;

  /// Member `key`, which must exist and not be null.
  JsonRef at(const std::string& key) const;
  /// Member `key`; nothing when absent or null.
  std::optional<JsonRef> find(const std::string& key) const;
  /// Elements of an array.
  std::vector<JsonRef> elements() const;
  /// A value inside this one; its place is this place followed by `step`.
  JsonRef inside(const nlohmann::json& value, const std::string& step) const {
    return JsonRef(value, *file_, where_ + step);
  }

  const std::string& string() const;
  bool boolean() const;
  std::int64_t integer() const;

  bool boolean_or(const std::string& key, bool fallback) const {
    const auto member = find(key);
    return member ? member->boolean() : fallback;
  }

  /// Throws Error "<file>: <place> <parts...>".
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    nemocube::fail(*file_, ": ", where_.empty() ? "the document" : where_, " ", parts...);
  }

 private:
  const nlohmann::json* value_;
  const std::string* file_;
  std::string where_;
};

/// Reads and parses a whole file; throws Error naming it.
nlohmann::json read_json(const std::filesystem::path& path);

}  // namespace nemocube::tok
