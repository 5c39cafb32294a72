#include <algorithm>

#include "core/error.h"
#include "core/quote.h"
#include "train/recipe/scalar.h"
#include "train/recipe/value.h"

namespace nemocube::recipe {
namespace {

/// The entry `part` of `at`, created where it is absent.
Value& descend(Value& at, const std::string& part, const std::string& where) {
  if (at.kind == Value::Kind::scalar && !at.quoted && (at.text == "none" || at.text == "None")) at = Value{};
  if (at.kind == Value::Kind::null) at.kind = Value::Kind::map;
  if (at.kind == Value::Kind::list) {
    const auto index = parse_integer(part);
    const auto size = static_cast<std::int64_t>(at.items.size());
    require(index && *index >= 0 && *index <= size, where, ": '", part, "' is no index of a list of ", size,
            " (0 to ", size, ", the last one appends)");
    if (*index == size) at.items.emplace_back();
    return at.items[static_cast<std::size_t>(*index)];
  }
  require(at.kind == Value::Kind::map, where, ": '", part, "' is below ", quote(at.text),
          ", which is a value, not a section");
  for (auto& [key, entry] : at.entries)
    if (key == part) return entry;
  return at.entries.emplace_back(part, Value{}).value;
}

}  // namespace

void apply_override(Value& root, std::string_view assignment) {
  const std::string where = cat("--set ", excerpt(assignment));
  const auto equals = assignment.find('=');
  require(equals != std::string_view::npos && equals > 0, where, ": want key.path=value");
  const std::string path(assignment.substr(0, equals));
  require(std::count(path.begin(), path.end(), '.') < max_depth, where, ": nested deeper than ", max_depth,
          " levels");
  Value* at = &root;
  std::size_t begin = 0;
  while (begin <= path.size()) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    require(!part.empty(), where, ": the key path has an empty part");
    check_key(part, where);
    at = &descend(*at, part, where);
    begin = end + 1;
  }
  const std::string text(assignment.substr(equals + 1));
  *at = parse_yaml_value(text, where, 0);
  // A shell's argument has no comments: what follows '#' belongs to the value.
  const bool cut = at->kind == Value::Kind::null || (at->kind == Value::Kind::scalar && !at->quoted);
  if (cut && at->text != text && text.find('#') != std::string::npos) {
    *at = Value{};
    at->kind = Value::Kind::scalar;
    at->text = text;
  }
}

}  // namespace nemocube::recipe
