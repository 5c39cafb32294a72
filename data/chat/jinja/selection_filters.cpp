#include "data/chat/jinja/arguments.h"
#include "data/chat/jinja/filters.h"
#include "data/chat/jinja/value_tests.h"

namespace nemocube::jinja {

namespace {

using Change = std::function<Value(const Value&)>;
using Condition = std::function<bool(const Value&)>;

const std::string& want_name(std::string_view filter, const Value& value) {
  if (!value.is_text()) raise(filter, " wants the name of a filter or test, got ", kind_of(value));
  return value.bytes();
}

/// What map does to an item.
Change change_of(Interpreter& interpreter, const Arguments& arguments) {
  if (arguments.positional.empty() && !arguments.named.empty()) {
    const Bound bound = bind("map", arguments, {"attribute", "default"}, 1);
    const Value otherwise = bound.value(1, Value());
    return
        [&interpreter, path = AttributePath(bound[0], interpreter.budget()), otherwise](const Value& item) {
          return path.of(interpreter, item, otherwise.is_none() ? nullptr : &otherwise);
        };
  }
  if (arguments.positional.empty()) raise("map wants the name of a filter or attribute=");
  const std::string& name = want_name("map", arguments.positional[0]);
  const Filter* filter = find_filter(name);
  if (!filter) raise(missing_filter(name));
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin());
  return [&interpreter, filter, rest](const Value& item) {
    interpreter.spend_for(item);
    return (*filter)(interpreter, item, rest);
  };
}

/// What select and its kin ask of an item.
Condition condition_of(Interpreter& interpreter, const Arguments& arguments, bool of_attribute) {
  AttributePath path;
  std::size_t next = 0;
  if (of_attribute) {
    if (arguments.positional.empty()) raise("selectattr wants the name of an attribute");
    path = AttributePath(arguments.positional[next++], interpreter.budget());
  }
  if (next == arguments.positional.size())
    return [&interpreter, path](const Value& item) { return truth(path.of(interpreter, item)); };
  const std::string& name = want_name("select", arguments.positional[next++]);
  const ValueTest* test = find_test(name);
  if (!test) raise(missing_test(name));
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(), rest.positional.begin() + static_cast<std::ptrdiff_t>(next));
  return [&interpreter, path, test, rest](const Value& item) {
    const Value value = path.of(interpreter, item);
    interpreter.spend_for(value);
    return (*test)(interpreter, value, rest);
  };
}

// Both work when their items are asked for, as Python's generators do.
Value map(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  return Value(interpreter.generate([&interpreter, value, arguments, items = static_cast<Iterator*>(nullptr),
                                     change = Change()](Value& item) mutable {
    if (!items) {
      if (!truth(value)) return false;
      change = change_of(interpreter, arguments);
      items = interpreter.iterate(value);
    }
    if (!items->next(item)) return false;
    item = change(item);
    return true;
  }));
}

template <bool wanted, bool of_attribute>
Value select(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  return Value(interpreter.generate([&interpreter, value, arguments, items = static_cast<Iterator*>(nullptr),
                                     condition = Condition()](Value& item) mutable {
    if (!items) {
      if (!truth(value)) return false;
      condition = condition_of(interpreter, arguments, of_attribute);
      items = interpreter.iterate(value);
    }
    while (items->next(item))
      if (condition(item) == wanted) return true;
    return false;
  }));
}

}  // namespace

void add_selection_filters(FilterTable& table) {
  table["map"] = map;
  table["select"] = select<true, false>;
  table["reject"] = select<false, false>;
  table["selectattr"] = select<true, true>;
  table["rejectattr"] = select<false, true>;
}

}  // namespace nemocube::jinja
