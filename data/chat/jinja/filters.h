#pragma once
#include <map>
#include <string>
#include <string_view>

#include "data/chat/jinja/interpreter.h"

namespace nemocube::jinja {

using Filter = Value (*)(Interpreter& interpreter, const Value& value, const Arguments& arguments);

/// The filter of this name; null where this build has none.
const Filter* find_filter(std::string_view name);
/// A text for messages: no such filter exists, or Jinja has the filter and this build has not.
std::string missing_filter(std::string_view name);
/// Whether Jinja has a filter of that name.
bool is_filter_name(std::string_view name);

using FilterTable = std::map<std::string_view, Filter, std::less<>>;
// The filters of each file.
void add_text_filters(FilterTable& table);
void add_number_filters(FilterTable& table);
void add_item_filters(FilterTable& table);
void add_selection_filters(FilterTable& table);

/// Looks up an attribute of items: "a.b.0", a number, or nothing (the item itself).
class AttributePath {
 public:
  AttributePath() = default;
  AttributePath(const Value& attribute, Budget& budget);
  AttributePath(std::string_view path, Budget& budget);
  Value of(Interpreter& interpreter, Value item, const Value* otherwise = nullptr) const;

 private:
  std::vector<Value> parts_;
};

}  // namespace nemocube::jinja
