#include "data/chat/jinja/compare.h"
#include "data/chat/jinja/interpreter.h"
#include "data/chat/jinja/text.h"

namespace nemocube::jinja {

namespace {

/// The item number `index` of a value that has a size, except of texts.
Value item_at(const Value& value, std::size_t index, Budget& budget) {
  if (const auto& items = value.items()) return items->values[index];
  if (value.is_mapping()) return value.mapping().entries()[index].first;
  if (const auto* range = value.as<Range>()) return range->at(index);
  return value.as<View>()->at(index, budget);
}

bool has_items(const Value& value) {
  return value.items() || value.is_mapping() || value.as<Range>() || value.as<View>();
}

/// Iterates until `next` ends. Spends one step for each item.
Iterator* counted(Interpreter& interpreter, Generator::Next next) {
  return interpreter.generate([&interpreter, next = std::move(next)](Value& value) {
    interpreter.budget().spend();
    return next(value);
  });
}

Iterator* iterate_text(Interpreter& interpreter, const Value& value) {
  return counted(interpreter, [&interpreter, value, at = std::size_t{0}](Value& item) mutable {
    const std::string& bytes = value.bytes();
    if (at >= bytes.size()) return false;
    const std::size_t length = utf8_step(bytes, at).length;
    item = interpreter.text(bytes.substr(at, length));
    at += length;
    return true;
  });
}

}  // namespace

bool Interpreter::is_iterable(const Value& value) const {
  return value.is_undefined() || value.is_text() || has_items(value) || value.as<Iterator>() ||
         value.as<Loop>();
}

Iterator* Interpreter::iterate(const Value& value) {
  if (auto* iterator = value.as<Iterator>()) return iterator;
  if (value.is_text()) return iterate_text(*this, value);
  if (value.is_undefined()) return generate([](Value&) { return false; });
  if (!has_items(value)) raise("want a list, a mapping or another value with items, got ", kind_of(value));
  const std::size_t size = *size_of(value);
  return counted(*this, [this, value, size, index = std::size_t{0}](Value& item) mutable {
    if (index >= size) return false;
    item = item_at(value, index++, budget_);
    return true;
  });
}

Iterator* Interpreter::iterate_backwards(const Value& value) {
  if (value.is_undefined()) return iterate(value);
  if (value.is_text()) {
    return counted(*this, [this, value, end = value.bytes().size()](Value& item) mutable {
      if (end == 0) return false;
      const std::size_t begin = previous_character(value.bytes(), end);
      item = text(value.bytes().substr(begin, end - begin), value.is_markup());
      end = begin;
      return true;
    });
  }
  if (!has_items(value)) return nullptr;
  return counted(*this, [this, value, index = *size_of(value)](Value& item) mutable {
    if (index == 0) return false;
    item = item_at(value, --index, budget_);
    return true;
  });
}

std::vector<Value> Interpreter::collect(const Value& value) {
  if (const auto& items = value.items()) {
    budget_.spend_items(items->values.size());
    budget_.spend_memory(items->values.size() * Budget::bytes_of_value);
    return items->values;
  }
  std::vector<Value> values;
  Iterator* iterator = iterate(value);
  for (Value item; iterator->next(item);) {
    if (values.size() >= budget_.limits().items)
      raise("the template makes a list of more than ", budget_.limits().items, " items");
    budget_.spend_memory(Budget::bytes_of_value);
    values.push_back(std::move(item));
  }
  return values;
}

bool Interpreter::contains(const Value& container, const Value& item) {
  if (container.is_text()) {
    if (!item.is_text()) raise("want a text to look for in a text, got ", kind_of(item));
    budget_.spend(1 + container.bytes().size() / 16);
    return find_first(container.bytes(), item.bytes()) != std::string_view::npos;
  }
  if (container.is_mapping()) return container.mapping().find(item, budget_) != nullptr;
  if (const auto* view = container.as<View>(); view && view->part == View::Part::keys)
    return view->mapping->find(item, budget_) != nullptr;
  Iterator* iterator = iterate(container);
  for (Value other; iterator->next(other);)
    if (same_or_equal(other, item, budget_)) return true;
  return false;
}

}  // namespace nemocube::jinja
