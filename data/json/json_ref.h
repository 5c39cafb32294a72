#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/json/json.h"

namespace nemocube {

/// A value in a JSON file, with its place, like JsonView, but for files that describe a program, such as
/// tokenizer.json. Readers of such files refuse most values for other reasons than the type: a kind of
/// normalizer that is not supported, a merge of unknown tokens. So a message is a sentence about the place,
/// which the reader completes ("tokenizer.json: model.type is "WordPiece"; only BPE is supported"); messages
/// of JsonView give the wanted type. Some hundred thousand merges get a JsonRef each, so JsonRef borrows the
/// name of the file, which JsonView copies.
///
/// Does not own document and file name. All accessors throw Error when the value has another type.
class JsonRef {
 public:
  JsonRef(const Json& value, const std::string& file, std::string where)
      : value_(&value), file_(&file), where_(std::move(where)) {}
  JsonRef(Json&& value, const std::string& file, std::string where) = delete;  // a temporary value

  const Json& value() const& { return *value_; }
  const Json& value() const&& = delete;
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
  JsonRef inside(const Json& value, const std::string& step) const {
    return JsonRef(value, *file_, where_ + step);
  }

  std::string_view string() const;  ///< lives as long as the document
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
  const Json* value_;
  const std::string* file_;
  std::string where_;
};

}  // namespace nemocube
