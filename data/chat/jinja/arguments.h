#pragma once
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/jinja/objects.h"

namespace nemocube::jinja {

/// Arguments by parameter; nothing where none is given.
class Bound {
 public:
  Bound(std::string_view function, std::vector<std::optional<Value>> values)
      : function_(function), values_(std::move(values)) {}

  bool has(std::size_t i) const { return values_[i].has_value(); }
  const Value& operator[](std::size_t i) const { return *values_[i]; }
  Value value(std::size_t i, Value otherwise) const { return has(i) ? *values_[i] : std::move(otherwise); }
  bool flag(std::size_t i, bool otherwise) const { return has(i) ? truth(*values_[i]) : otherwise; }
  const std::string& text(std::size_t i) const;
  /// Nothing where no text or None is given.
  std::optional<std::string_view> text_or_none(std::size_t i) const;
  /// Integers beyond 64 bits become the nearest that fits.
  std::int64_t integer(std::size_t i) const;
  std::int64_t integer(std::size_t i, std::int64_t otherwise) const {
    return has(i) ? integer(i) : otherwise;
  }

 private:
  std::string_view function_;
  std::vector<std::optional<Value>> values_;
};

enum class By { position_or_name, position };

/// Throws Failure naming the function where arguments lack, or are too many or unknown.
Bound bind(std::string_view function, const Arguments& arguments,
           std::initializer_list<std::string_view> parameters, std::size_t required = 0,
           By by = By::position_or_name);

std::int64_t clamped(Integer value);

}  // namespace nemocube::jinja
