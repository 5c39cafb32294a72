#include <algorithm>

#include "core/quote.h"
#include "data/chat/jinja/arguments.h"
#include "data/chat/jinja/compare.h"
#include "data/chat/jinja/filters.h"
#include "data/chat/jinja/letters.h"
#include "data/chat/jinja/text.h"

namespace nemocube::jinja {

namespace {

/// What sort, unique and others compare: texts without regard to case unless asked.
Value sort_key(Interpreter& interpreter, Value key, bool case_sensitive) {
  if (case_sensitive || !key.is_text()) return key;
  return interpreter.text(lower_case(key.bytes()));
}

struct Keyed {
  std::vector<Value> keys;
  Value item;
};

/// Python's sorted(): stable, in both directions. The keys of an item compare as a list does, or its only key
/// by itself.
void sort_by_keys(Interpreter& interpreter, std::vector<Keyed>& items, bool reverse, bool as_list = false) {
  Budget& budget = interpreter.budget();
  for (const Keyed& one : items)
    budget.spend_memory(2 * sizeof(Keyed) + one.keys.size() * Budget::bytes_of_value);
  const auto before = [&](const Keyed& a, const Keyed& b) {
    for (std::size_t i = 0; i < a.keys.size(); ++i) {
      if (as_list && equal(a.keys[i], b.keys[i], budget)) continue;
      return less(a.keys[i], b.keys[i], budget);
    }
    return false;
  };
  std::ranges::stable_sort(
      items, [&](const Keyed& a, const Keyed& b) { return reverse ? before(b, a) : before(a, b); });
}

Value sorted_items(Interpreter& interpreter, std::vector<Keyed> keyed) {
  std::vector<Value> values;
  for (Keyed& one : keyed) values.push_back(std::move(one.item));
  return interpreter.list(std::move(values));
}

Value sort(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound = bind("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  std::vector<AttributePath> paths;
  const Value attribute = bound.value(2, Value());
  if (attribute.is_text())
    for (const std::string_view part : split_at(attribute.bytes(), ",", -1, false, interpreter.budget()))
      paths.emplace_back(part, interpreter.budget());
  else
    paths.emplace_back(attribute, interpreter.budget());
  std::vector<Keyed> items;
  for (const Value& item : interpreter.collect(value)) {
    Keyed keyed{{}, item};
    for (const AttributePath& path : paths)
      keyed.keys.push_back(sort_key(interpreter, path.of(interpreter, item), bound.flag(1, false)));
    items.push_back(std::move(keyed));
  }
  sort_by_keys(interpreter, items, bound.flag(0, false), true);
  return sorted_items(interpreter, std::move(items));
}

Value dictsort(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound = bind("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const std::string by = bound.has(1) ? bound.text(1) : "key";
  if (by != "key" && by != "value") raise("dictsort sorts by 'key' or by 'value', got ", quote(by));
  if (value.is_undefined()) refuse_undefined(value);
  if (!value.is_mapping()) raise("dictsort wants a mapping, got ", kind_of(value));
  std::vector<Keyed> items;
  for (const auto& [key, one] : value.mapping().entries())
    items.push_back({{sort_key(interpreter, by == "key" ? key : one, bound.flag(0, false))},
                     make_tuple({key, one}, interpreter.budget())});
  sort_by_keys(interpreter, items, bound.flag(2, false));
  return sorted_items(interpreter, std::move(items));
}

Value groupby(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound = bind("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  const AttributePath path(bound[0], interpreter.budget());
  const Value otherwise = bound.value(1, Value());
  const Value* const fallback = otherwise.is_none() ? nullptr : &otherwise;
  std::vector<Keyed> items;
  for (const Value& item : interpreter.collect(value))
    items.push_back(
        {{sort_key(interpreter, path.of(interpreter, item, fallback), bound.flag(2, false))}, item});
  sort_by_keys(interpreter, items, false);
  std::vector<Value> groups;
  for (std::size_t begin = 0; begin < items.size();) {
    std::size_t end = begin;
    std::vector<Value> members;
    while (end < items.size() && equal(items[begin].keys[0], items[end].keys[0], interpreter.budget()))
      members.push_back(items[end++].item);
    if (end == begin) members.push_back(items[end++].item);  // a key that does not equal itself
    Value name = path.of(interpreter, items[begin].item, fallback);
    groups.push_back(
        make_tuple({std::move(name), interpreter.list(std::move(members))}, interpreter.budget(), true));
    begin = end;
  }
  return interpreter.list(std::move(groups));
}

template <bool largest>
Value extreme(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound = bind(largest ? "max" : "min", arguments, {"case_sensitive", "attribute"});
  const AttributePath path(bound.value(1, Value()), interpreter.budget());
  const std::vector<Value> items = interpreter.collect(value);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  const auto key_of = [&](const Value& item) {
    return sort_key(interpreter, path.of(interpreter, item), bound.flag(0, false));
  };
  Value best = items[0], best_key = key_of(best);
  for (std::size_t i = 1; i < items.size(); ++i) {
    Value key = key_of(items[i]);
    const bool better =
        largest ? less(best_key, key, interpreter.budget()) : less(key, best_key, interpreter.budget());
    if (!better) continue;
    best = items[i];
    best_key = std::move(key);
  }
  return best;
}

Value sum(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound = bind("sum", arguments, {"attribute", "start"});
  const AttributePath path(bound.value(0, Value()), interpreter.budget());
  Value total = bound.value(1, Value(0));
  if (total.is_text()) raise("sum wants another start than a text");
  for (const Value& item : interpreter.collect(value))
    total = interpreter.binary(Operator::add, total, path.of(interpreter, item));
  return total;
}

Value length(Interpreter&, const Value& value, const Arguments& arguments) {
  bind("length", arguments, {});
  const auto size = size_of(value);
  if (!size) raise("length wants a value with a length, got ", kind_of(value));
  return Value(*size);
}

Value first(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  bind("first", arguments, {});
  Value item;
  return interpreter.iterate(value)->next(item) ? item : Value::undefined("there is no first item");
}

Value last(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  bind("last", arguments, {});
  Iterator* items = interpreter.iterate_backwards(value);
  if (!items) raise("last wants a list, a text or a mapping, got ", kind_of(value));
  Value item;
  return items->next(item) ? item : Value::undefined("there is no last item");
}

Value list(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  bind("list", arguments, {});
  return interpreter.list(interpreter.collect(value));
}

Value reverse(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  bind("reverse", arguments, {});
  if (value.is_text()) return interpreter.slice(value, Value(), Value(), Value(-1));
  if (Iterator* items = interpreter.iterate_backwards(value)) return Value(items);
  std::vector<Value> values = interpreter.collect(value);
  std::ranges::reverse(values);
  return interpreter.list(std::move(values));
}

Value join(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound = bind("join", arguments, {"d", "attribute"});
  const AttributePath path(bound.value(1, Value()), interpreter.budget());
  const std::string separator = bound.has(0) ? interpreter.to_text(bound[0]) : "";
  std::string out;
  bool begun = false;
  Iterator* items = interpreter.iterate(value);
  for (Value item; items->next(item);) {
    if (begun) out += separator;
    begun = true;
    out += interpreter.to_text(path.of(interpreter, item));
    interpreter.budget().check_text(out.size());
  }
  return interpreter.text(std::move(out));
}

/// Gives the values of a list, once.
Value generator_of(Interpreter& interpreter, std::vector<Value> values) {
  return Value(interpreter.generate([values = std::move(values), at = std::size_t{0}](Value& value) mutable {
    if (at == values.size()) return false;
    value = values[at++];
    return true;
  }));
}

Value batch(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound = bind("batch", arguments, {"linecount", "fill_with"}, 1);
  const std::int64_t size = bound.integer(0);
  std::vector<Value> batches, current;
  const auto flush = [&] { batches.push_back(interpreter.list(std::exchange(current, {}))); };
  for (const Value& item : interpreter.collect(value)) {
    if (static_cast<std::int64_t>(current.size()) == size) flush();
    current.push_back(item);
  }
  if (!current.empty()) {
    const std::int64_t lacking = size - static_cast<std::int64_t>(current.size());
    if (bound.has(1) && !bound[1].is_none() && lacking > 0) {
      interpreter.budget().spend_items(static_cast<std::size_t>(lacking));
      current.insert(current.end(), static_cast<std::size_t>(lacking), bound[1]);
    }
    flush();
  }
  return generator_of(interpreter, std::move(batches));
}

Value slice(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound = bind("slice", arguments, {"slices", "fill_with"}, 1);
  const std::int64_t slices = bound.integer(0);
  if (slices == 0) raise("slice wants another number of slices than 0");
  const std::vector<Value> items = interpreter.collect(value);
  if (slices < 0) return generator_of(interpreter, {});
  interpreter.budget().spend_items(static_cast<std::size_t>(slices));
  const auto size = static_cast<std::int64_t>(items.size());
  std::vector<Value> parts;
  auto from = items.begin();
  for (std::int64_t i = 0; i < slices; ++i) {
    const auto to = from + (size / slices + (i < size % slices ? 1 : 0));
    std::vector<Value> part(from, to);
    if (bound.has(1) && !bound[1].is_none() && i >= size % slices) part.push_back(bound[1]);
    parts.push_back(interpreter.list(std::move(part)));
    from = to;
  }
  return generator_of(interpreter, std::move(parts));
}

Value unique(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound = bind("unique", arguments, {"case_sensitive", "attribute"});
  const AttributePath path(bound.value(1, Value()), interpreter.budget());
  const bool case_sensitive = bound.flag(0, false);
  return Value(
      interpreter.generate([&interpreter, value, path, case_sensitive,
                            items = static_cast<Iterator*>(nullptr), seen = Mapping()](Value& item) mutable {
        if (!items) items = interpreter.iterate(value);
        while (items->next(item)) {
          const Value key = sort_key(interpreter, path.of(interpreter, item), case_sensitive);
          if (seen.find(key, interpreter.budget())) continue;
          seen.set(key, Value(), interpreter.budget());
          return true;
        }
        return false;
      }));
}

Value items(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  bind("items", arguments, {});
  return Value(interpreter.generate([&interpreter, value, at = std::size_t{0}](Value& item) mutable {
    if (value.is_undefined()) return false;
    if (!value.is_mapping()) raise("items wants a mapping, got ", kind_of(value));
    const auto& entries = value.mapping().entries();
    if (at == entries.size()) return false;
    const auto& [key, one] = entries[at++];
    item = make_tuple({key, one}, interpreter.budget());
    return true;
  }));
}

Value attr(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound = bind("attr", arguments, {"name"}, 1);
  if (value.is_undefined()) refuse_undefined(value);
  const std::string& name = bound.text(0);
  // Of a mapping only methods count, which an empty one has too.
  const Value found = interpreter.attribute(value.is_mapping() ? make_mapping(Mapping()) : value, name);
  return value.is_mapping() && !found.is_undefined() ? interpreter.attribute(value, name) : found;
}

Value otherwise(Interpreter&, const Value& value, const Arguments& arguments) {
  const Bound bound = bind("default", arguments, {"default_value", "boolean"});
  const bool replace = value.is_undefined() || (bound.flag(1, false) && !truth(value));
  return replace ? bound.value(0, Value("")) : value;
}

}  // namespace

void add_item_filters(FilterTable& table) {
  table["attr"] = attr;
  table["batch"] = batch;
  table["d"] = table["default"] = otherwise;
  table["dictsort"] = dictsort;
  table["first"] = first;
  table["groupby"] = groupby;
  table["items"] = items;
  table["join"] = join;
  table["last"] = last;
  table["length"] = table["count"] = length;
  table["list"] = list;
  table["max"] = extreme<true>;
  table["min"] = extreme<false>;
  table["reverse"] = reverse;
  table["slice"] = slice;
  table["sort"] = sort;
  table["sum"] = sum;
  table["unique"] = unique;
}

}  // namespace nemocube::jinja
