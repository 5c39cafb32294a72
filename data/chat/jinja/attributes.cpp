#include <algorithm>

#include "core/quote.h"
#include "data/chat/jinja/arguments.h"
#include "data/chat/jinja/interpreter.h"
#include "data/chat/jinja/methods.h"
#include "data/chat/jinja/text.h"

namespace nemocube::jinja {

namespace {

Value no_attribute(Interpreter& interpreter, const Value& object, const std::string& name) {
  return interpreter.undefined(cat(kind_of(object), " has no attribute or key ", quote(name)));
}

Value forbidden(const Value& object, const std::string& name) {
  return Value::undefined(
      cat("the attribute ", quote(name), " of ", kind_of(object), " is forbidden in templates"));
}

std::optional<Value> loop_attribute(Loop& loop, const std::string& name) {
  const std::int64_t index = loop.index0 + 1;
  const auto length = [&] { return static_cast<std::int64_t>(loop.length()); };
  if (name == "index") return Value(index);
  if (name == "index0") return Value(loop.index0);
  if (name == "first") return Value(loop.index0 == 0);
  if (name == "last") return Value(loop.peek() == nullptr);
  if (name == "length") return Value(length());
  if (name == "revindex") return Value(length() - loop.index0);
  if (name == "revindex0") return Value(length() - index);
  if (name == "depth") return Value(loop.depth0 + 1);
  if (name == "depth0") return Value(loop.depth0);
  if (name == "previtem")
    return loop.index0 == 0 ? Value::undefined("there is no previous item") : loop.before;
  if (name == "nextitem") {
    const Value* next = loop.peek();
    return next ? *next : Value::undefined("there is no next item");
  }
  return std::nullopt;
}

std::optional<Value> range_attribute(const Range& range, const std::string& name) {
  if (name == "start") return Value(range.start);
  if (name == "stop") return Value(range.stop);
  if (name == "step") return Value(range.step);
  return std::nullopt;
}

/// Attributes that are no methods.
std::optional<Value> plain_attribute(Interpreter& interpreter, const Value& object, const std::string& name) {
  if (auto* loop = object.as<Loop>()) return loop_attribute(*loop, name);
  if (const auto* space = object.as<Namespace>()) {
    const Value* found = space->attributes.find_text(name, interpreter.budget());
    return found ? std::optional(*found) : std::nullopt;
  }
  if (const auto* range = object.as<Range>()) return range_attribute(*range, name);
  if (const auto* cycler = object.as<Cycler>(); cycler && name == "current")
    return cycler->items[cycler->position];
  if (const auto* function = object.as<Function>(); function && function->macro && name == "name")
    return function->name.empty() ? Value() : Value(function->name);
  if (object.is_tuple() && object.items()->grouping) {
    if (name == "grouper") return object.items()->values[0];
    if (name == "list") return object.items()->values[1];
  }
  return std::nullopt;
}

/// Python's getattr(); nothing where there is no such attribute.
std::optional<Value> get_attribute(Interpreter& interpreter, const Value& object, const std::string& name) {
  if (name.starts_with("__") && name.ends_with("__") && name.size() > 4) return forbidden(object, name);
  if (auto plain = plain_attribute(interpreter, object, name)) return plain;
  if (changes_value(object, name)) return forbidden(object, name);
  if (const Method* method = find_method(object, name)) {
    const auto call = [&interpreter, object, method](const Arguments& arguments) {
      interpreter.spend_for(object);
      return method->call(interpreter, object, arguments);
    };
    return Value(interpreter.make<Function>(name, call));
  }
  if (is_missing_method(object, name))
    raise("the attribute ", quote(name), " of ", kind_of(object), " is not in this build");
  return std::nullopt;
}

/// Python's object[key]; nothing for what Python raises as TypeError or LookupError.
std::optional<Value> get_item(Interpreter& interpreter, const Value& object, const Value& key) {
  if (object.is_mapping()) {
    if (key.is_list() || key.is_mapping()) return std::nullopt;  // no keys
    const Value* found = object.mapping().find(key, interpreter.budget());
    return found ? std::optional(*found) : std::nullopt;
  }
  const auto size = object.is_text() || object.items() || object.as<Range>() ? size_of(object) : std::nullopt;
  if (!size || !key.is_integral()) return std::nullopt;
  const auto length = static_cast<Integer>(*size);
  const Integer index = key.integer() < 0 ? key.integer() + length : key.integer();
  if (index < 0 || index >= length) return std::nullopt;
  const auto at = static_cast<std::size_t>(index);
  if (const auto& items = object.items()) return items->values[at];
  if (const auto* range = object.as<Range>()) return range->at(at);
  const Text& text = object.text();
  const std::size_t begin = byte_at(text, at);
  interpreter.budget().spend(text.ascii() ? 1 : 1 + begin / 16);
  return interpreter.text(text.bytes.substr(begin, utf8_step(text.bytes, begin).length), text.markup);
}

/// Python's slice.indices().
struct SliceIndices {
  std::int64_t start = 0, step = 1, count = 0;
};

SliceIndices slice_indices(const Value& start, const Value& stop, const Value& step, std::int64_t size) {
  const auto integer = [](const Value& value, std::int64_t otherwise) {
    if (value.is_none()) return otherwise;
    if (!value.is_integral()) raise("want integers between [ and ], got ", kind_of(value));
    return clamped(value.integer());
  };
  SliceIndices indices;
  indices.step = integer(step, 1);
  if (indices.step == 0) raise("want another step than 0 in a slice");
  indices.step = std::clamp<std::int64_t>(indices.step, -(size + 1), size + 1);
  const std::int64_t low = indices.step < 0 ? -1 : 0, high = indices.step < 0 ? size - 1 : size;
  const auto bound = [&](const Value& value, std::int64_t otherwise) {
    if (value.is_none()) return otherwise;
    const std::int64_t index = integer(value, 0);
    if (index >= 0) return std::min(index, high);
    return index < -size ? low : std::max(index + size, low);
  };
  indices.start = bound(start, indices.step < 0 ? high : low);
  const std::int64_t end = bound(stop, indices.step < 0 ? low : high);
  const std::int64_t distance = indices.step < 0 ? indices.start - end : end - indices.start;
  const std::int64_t stride = indices.step < 0 ? -indices.step : indices.step;
  indices.count = distance > 0 ? (distance + stride - 1) / stride : 0;
  return indices;
}

std::string slice_text(const Text& text, const SliceIndices& slice) {
  if (slice.count == 0) return "";
  const auto start = static_cast<std::size_t>(slice.start);
  if (slice.step == 1) {
    const std::size_t begin = byte_at(text, start);
    return text.bytes.substr(begin, byte_at(text, start + static_cast<std::size_t>(slice.count)) - begin);
  }
  std::string out;
  std::size_t at = byte_at(text, start);
  for (std::int64_t i = 0; i < slice.count; ++i) {
    out.append(text.bytes, at, utf8_step(text.bytes, at).length);
    if (i + 1 == slice.count) break;
    for (std::int64_t n = 0; n < slice.step; ++n) at += utf8_step(text.bytes, at).length;
    for (std::int64_t n = 0; n > slice.step; --n) at = previous_character(text.bytes, at);
  }
  return out;
}

}  // namespace

Value Interpreter::attribute(const Value& object, const std::string& name) {
  budget_.spend();
  if (object.is_undefined()) refuse_undefined(object);
  if (auto found = get_attribute(*this, object, name)) return *found;
  if (object.is_mapping())
    if (const Value* found = object.mapping().find_text(name, budget_)) return *found;
  return no_attribute(*this, object, name);
}

Value Interpreter::item(const Value& object, const Value& key) {
  budget_.spend();
  if (object.is_undefined()) refuse_undefined(object);
  if (auto found = get_item(*this, object, key)) return *found;
  if (key.is_text()) {
    const std::string& name = key.bytes();
    if (auto found = get_attribute(*this, object, name)) return *found;
    return no_attribute(*this, object, name);
  }
  const std::string shown = key.is_integral() ? cat("number ", to_text(key)) : kind_of(key);
  return undefined(cat(kind_of(object), " has no element ", shown));
}

Value Interpreter::slice(const Value& object, const Value& start, const Value& stop, const Value& step) {
  if (object.is_undefined()) refuse_undefined(object);
  const auto size = object.is_text() || object.items() || object.as<Range>() ? size_of(object) : std::nullopt;
  if (!size) raise("want a text, a list or a tuple to take a slice of, got ", kind_of(object));
  const SliceIndices slice = slice_indices(start, stop, step, static_cast<std::int64_t>(*size));
  if (object.is_text()) {
    budget_.spend(1 + object.bytes().size() / 16);
    return text(slice_text(object.text(), slice), object.is_markup());
  }
  if (const auto* range = object.as<Range>()) {
    const auto at = [range](std::int64_t i) { return range->start + Integer{i} * range->step; };
    auto* part =
        make<Range>(at(slice.start), range->step * slice.step, static_cast<std::size_t>(slice.count));
    part->stop = at(slice.start + slice.step * slice.count);
    return Value(part);
  }
  budget_.spend_items(static_cast<std::size_t>(slice.count));
  std::vector<Value> values;
  for (std::int64_t i = 0; i < slice.count; ++i)
    values.push_back(object.items()->values[static_cast<std::size_t>(slice.start + i * slice.step)]);
  return object.is_list() ? list(std::move(values)) : make_tuple(std::move(values), budget_);
}

Value Interpreter::call(const Value& callee, const Arguments& arguments) {
  if (callee.is_undefined()) refuse_undefined(callee);
  if (auto* loop = callee.as<Loop>()) {
    if (!loop->recurse) raise("want {% for ... recursive %} around a call of loop");
    const Bound bound = bind("loop", arguments, {"iterable"}, 1);
    return loop->recurse(bound[0], loop->depth0 + 1);
  }
  auto* function = callee.as<Function>();
  if (!function) raise("want a function, a macro or a method to call, got ", kind_of(callee));
  const Budget::Level level(budget_);
  return function->call(arguments);
}

}  // namespace nemocube::jinja
