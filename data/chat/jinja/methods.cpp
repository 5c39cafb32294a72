#include "data/chat/jinja/methods.h"

#include <algorithm>
#include <map>

#include "data/chat/jinja/arguments.h"
#include "data/chat/jinja/compare.h"

namespace nemocube::jinja {

namespace {

using MethodTable = std::map<std::string_view, Method, std::less<>>;

const std::vector<Value>& items_of(const Value& self) { return self.items()->values; }

Value count_items(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Bound bound = bind("count", arguments, {"value"}, 1, By::position);
  return Value(static_cast<std::int64_t>(std::ranges::count_if(items_of(self), [&](const Value& item) {
    return same_or_equal(item, bound[0], interpreter.budget());
  })));
}

Value index_of_item(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Bound bound = bind("index", arguments, {"value", "start", "stop"}, 1, By::position);
  const auto& items = items_of(self);
  const auto size = static_cast<std::int64_t>(items.size());
  const auto place = [&](std::int64_t index) {
    return std::clamp(index < 0 ? index + size : index, std::int64_t{0}, size);
  };
  const std::int64_t end = place(bound.integer(2, size));
  for (std::int64_t i = place(bound.integer(1, 0)); i < end; ++i) {
    const Value& item = items[static_cast<std::size_t>(i)];
    if (same_or_equal(item, bound[0], interpreter.budget())) return Value(i);
  }
  raise("index wants an item of the list");
}

Value copy(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  bind("copy", arguments, {});
  return self.is_list() ? interpreter.list(items_of(self)) : self;
}

Value get(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Bound bound = bind("get", arguments, {"key", "default"}, 1, By::position);
  const Value* found = self.mapping().find(bound[0], interpreter.budget());
  return found ? *found : bound.value(1, Value());
}

template <View::Part part>
Value view(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  bind("a view of a mapping", arguments, {});
  return Value(interpreter.make<View>(self.mapping_pointer(), part));
}

Value cycle(Interpreter&, const Value& self, const Arguments& arguments) {
  if (arguments.positional.empty() || !arguments.named.empty()) raise("loop.cycle wants items without names");
  const auto index = static_cast<std::size_t>(self.as<Loop>()->index0);
  return arguments.positional[index % arguments.positional.size()];
}

Value changed(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  if (!arguments.named.empty()) raise("loop.changed wants arguments without names");
  auto& loop = *self.as<Loop>();
  const auto same = [&](const Value& a, const Value& b) { return same_or_equal(a, b, interpreter.budget()); };
  if (loop.has_changed && std::ranges::equal(loop.changed, arguments.positional, same)) return false;
  loop.changed = arguments.positional;
  loop.has_changed = true;
  return true;
}

Value next_of_cycle(Interpreter&, const Value& self, const Arguments& arguments) {
  bind("next", arguments, {});
  auto& cycler = *self.as<Cycler>();
  const std::size_t position = std::exchange(cycler.position, (cycler.position + 1) % cycler.items.size());
  return cycler.items[position];
}

Value reset_cycle(Interpreter&, const Value& self, const Arguments& arguments) {
  bind("reset", arguments, {});
  self.as<Cycler>()->position = 0;
  return {};
}

const MethodTable& methods_of(const Value& self) {
  static const MethodTable none, list{{"count", {count_items}}, {"index", {index_of_item}}, {"copy", {copy}}},
      tuple{{"count", {count_items}}, {"index", {index_of_item}}},
      mapping{{"get", {get}},
              {"items", {view<View::Part::items>}},
              {"keys", {view<View::Part::keys>}},
              {"values", {view<View::Part::values>}},
              {"copy", {copy}}},
      loop{{"cycle", {cycle}}, {"changed", {changed}}},
      cycler{{"next", {next_of_cycle}}, {"reset", {reset_cycle}}};
  if (self.is_list()) return list;
  if (self.is_tuple()) return tuple;
  if (self.is_mapping()) return mapping;
  if (self.as<Loop>()) return loop;
  if (self.as<Cycler>()) return cycler;
  return none;
}

bool contains(std::initializer_list<std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

const Method* find_method(const Value& self, std::string_view name) {
  if (self.is_text()) return find_text_method(name);
  const MethodTable& table = methods_of(self);
  const auto found = table.find(name);
  return found == table.end() ? nullptr : &found->second;
}

bool changes_value(const Value& self, std::string_view name) {
  if (self.is_list())
    return contains({"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"}, name);
  return self.is_mapping() && contains({"clear", "pop", "popitem", "setdefault", "update"}, name);
}

bool is_missing_method(const Value& self, std::string_view name) {
  if (self.is_text())
    return contains({"casefold", "encode", "isidentifier", "maketrans", "translate", "escape", "unescape",
                     "striptags"},
                    name) &&
           (self.is_markup() || !contains({"escape", "unescape", "striptags"}, name));
  if (self.is_integral())
    return contains({"as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator", "from_bytes",
                     "imag", "numerator", "real", "to_bytes"},
                    name);
  if (self.is_float())
    return contains({"as_integer_ratio", "conjugate", "fromhex", "hex", "imag", "is_integer", "real"}, name);
  if (self.is_mapping()) return name == "fromkeys";
  if (self.as<Range>()) return contains({"count", "index"}, name);
  if (self.as<View>()) return contains({"isdisjoint", "mapping"}, name);
  if (const auto* function = self.as<Function>(); function && function->macro)
    return contains({"arguments", "caller", "catch_kwargs", "catch_varargs", "explicit_caller"}, name);
  if (const auto* function = self.as<Function>()) return name == "fromkeys" && function->name == "dict";
  return self.as<Cycler>() && contains({"items", "pos"}, name);
}

}  // namespace nemocube::jinja
