#include "data/chat/jinja/filters.h"

#include <algorithm>
#include <array>

#include "core/quote.h"
#include "data/chat/jinja/letters.h"
#include "data/chat/jinja/numbers.h"
#include "data/chat/jinja/text.h"

namespace nemocube::jinja {

namespace {

constexpr std::array<std::string_view, 7> not_here{"filesizeformat", "pprint",   "random", "striptags",
                                                   "urlize",         "wordwrap", "xmlattr"};

const FilterTable& filters() {
  static const FilterTable table = [] {
    FilterTable all;
    add_text_filters(all);
    add_number_filters(all);
    add_item_filters(all);
    add_selection_filters(all);
    return all;
  }();
  return table;
}

}  // namespace

const Filter* find_filter(std::string_view name) {
  const auto found = filters().find(name);
  return found == filters().end() ? nullptr : &found->second;
}

bool is_filter_name(std::string_view name) {
  return find_filter(name) || std::ranges::find(not_here, name) != not_here.end();
}

std::string missing_filter(std::string_view name) {
  return cat("the filter ", quote(name), is_filter_name(name) ? " is not in this build" : " does not exist");
}

AttributePath::AttributePath(const Value& attribute, Budget& budget) {
  if (attribute.is_text())
    *this = AttributePath(std::string_view(attribute.bytes()), budget);
  else if (!attribute.is_none())
    parts_.push_back(attribute);
}

AttributePath::AttributePath(std::string_view path, Budget& budget) {
  budget.spend(1 + path.size());
  for (const std::string_view part : split_at(path, ".", -1, false, budget)) {
    budget.spend_memory(Budget::bytes_of_value + Budget::bytes_of_text);
    const auto number = is_digit(part) ? parse_integer(part, 10) : std::nullopt;
    parts_.push_back(number ? Value(*number) : Value(std::string(part)));
  }
}

Value AttributePath::of(Interpreter& interpreter, Value item, const Value* otherwise) const {
  for (const Value& part : parts_) {
    item = interpreter.item(item, part);
    if (otherwise && item.is_undefined()) item = *otherwise;
  }
  return item;
}

}  // namespace nemocube::jinja
