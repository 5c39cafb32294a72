#include "data/chat/jinja/objects.h"

namespace nemocube::jinja {

Value View::at(std::size_t index, Budget& budget) const {
  const auto& [key, value] = mapping->entries()[index];
  if (part == Part::keys) return key;
  if (part == Part::values) return value;
  return make_tuple({key, value}, budget);
}

void Loop::clear() {
  iterable = before = current = Value();
  after.reset();
  changed.clear();
  rest_.clear();
  recurse = nullptr;
}

bool Loop::read(Value& value) {
  if (rest_position_ < rest_.size()) {
    value = rest_[rest_position_++];
    return true;
  }
  return iterator->next(value);
}

const Value* Loop::peek() {
  if (!after) {
    Value value;
    if (!read(value)) return nullptr;
    after = std::move(value);
  }
  return &*after;
}

bool Loop::advance(Value& value) {
  if (after) {
    value = std::move(*after);
    after.reset();
  } else if (!read(value)) {
    return false;
  }
  ++index0;
  before = std::move(current);
  current = value;
  return true;
}

std::size_t Loop::length() {
  if (!known_length) known_length = size_of(iterable);
  if (!known_length) {
    std::vector<Value> rest;
    for (Value value; read(value);) {
      budget_.spend_memory(Budget::bytes_of_value);
      rest.push_back(std::move(value));
    }
    rest_ = std::move(rest);
    rest_position_ = 0;
    known_length = rest_.size() + static_cast<std::size_t>(index0 + 1) + (after ? 1 : 0);
  }
  return *known_length;
}

std::optional<std::size_t> size_of(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.is_text()) return value.text().length;
  if (const auto& list = value.items()) return list->values.size();
  if (value.is_mapping()) return value.mapping().size();
  if (const auto* range = value.as<Range>()) return range->size;
  if (const auto* view = value.as<View>()) return view->mapping->size();
  if (auto* loop = value.as<Loop>()) return loop->length();
  return std::nullopt;
}

}  // namespace nemocube::jinja
