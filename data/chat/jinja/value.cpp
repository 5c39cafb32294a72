#include "data/chat/jinja/value.h"

#include <algorithm>

#include "data/chat/jinja/compare.h"
#include "data/chat/jinja/objects.h"
#include "data/chat/jinja/text.h"

namespace nemocube::jinja {

namespace {

constexpr std::size_t linear_search_up_to = 12;  // entries, in which a search without an index is fast

std::shared_ptr<const Items> freeze(std::vector<Value> values, Budget& budget, bool grouping) {
  budget.spend_items(values.size());
  auto items = std::make_shared<Items>();
  for (const Value& value : values) items->depth = std::max(items->depth, 1 + value.depth());
  if (items->depth > budget.limits().value_depth)
    raise("lists and mappings are nested more than ", budget.limits().value_depth, " deep");
  items->values = std::move(values);
  items->grouping = grouping;
  return items;
}

}  // namespace

Value::Value(std::string bytes, bool markup) {
  auto text = std::make_shared<Text>();
  text->length = length_of(bytes);
  text->bytes = std::move(bytes);
  text->markup = markup;
  data_ = TextPointer(std::move(text));
}

const std::shared_ptr<const Items>& Value::items() const {
  static const std::shared_ptr<const Items> nothing;
  if (const List* list = std::get_if<List>(&data_)) return list->items;
  if (const Tuple* tuple = std::get_if<Tuple>(&data_)) return tuple->items;
  return nothing;
}

bool Value::same_as(const Value& other) const {
  if (data_.index() != other.data_.index()) return false;
  if (is_none() || is_undefined()) return is_none();
  if (is_bool()) return boolean() == other.boolean();
  if (is_integral()) return integer() == other.integer();
  if (is_float()) return false;
  if (is_text()) return &text() == &other.text() || (bytes().size() < 64 && bytes() == other.bytes());
  if (items()) return items() == other.items();
  if (is_mapping()) return mapping_pointer() == other.mapping_pointer();
  return as<Object>() == other.as<Object>();
}

int Value::depth() const {
  if (const auto& list = items()) return list->depth;
  return is_mapping() ? mapping().depth() : 0;
}

std::optional<std::size_t> Mapping::position(const Value& key, std::uint64_t hash, Budget& budget) const {
  if (by_hash_.empty()) {
    for (std::size_t i = 0; i < entries_.size(); ++i)
      if (equal(entries_[i].first, key, budget)) return i;
    return std::nullopt;
  }
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto found = begin; found != end; ++found) {
    budget.spend();
    if (equal(entries_[found->second].first, key, budget)) return found->second;
  }
  return std::nullopt;
}

const Value* Mapping::find(const Value& key, Budget& budget) const {
  const auto found = position(key, hash_of(key, budget), budget);
  return found ? &entries_[*found].second : nullptr;
}

const Value* Mapping::find(std::string_view key) const {
  for (const Entry& entry : entries_)
    if (entry.first.is_text() && entry.first.bytes() == key) return &entry.second;
  return nullptr;
}

void Mapping::set(Value key, Value value, Budget& budget) {
  const std::uint64_t hash = hash_of(key, budget);
  depth_ = std::max({depth_, 1 + key.depth(), 1 + value.depth()});
  if (depth_ > budget.limits().value_depth)
    raise("lists and mappings are nested more than ", budget.limits().value_depth, " deep");
  if (const auto found = position(key, hash, budget)) {
    entries_[*found].second = std::move(value);
    return;
  }
  if (entries_.size() >= budget.limits().items)
    raise("the template makes a mapping of more than ", budget.limits().items, " keys");
  budget.spend();
  entries_.emplace_back(std::move(key), std::move(value));
  if (entries_.size() == linear_search_up_to + 1) {
    for (std::size_t i = 0; i < entries_.size(); ++i) by_hash_.emplace(hash_of(entries_[i].first, budget), i);
  } else if (entries_.size() > linear_search_up_to) {
    by_hash_.emplace(hash, entries_.size() - 1);
  }
}

Value make_list(std::vector<Value> values, Budget& budget) {
  return Value::List{freeze(std::move(values), budget, false)};
}

Value make_tuple(std::vector<Value> values, Budget& budget, bool grouping) {
  return Value::Tuple{freeze(std::move(values), budget, grouping)};
}

Value make_mapping(Mapping mapping) { return Value(std::make_shared<const Mapping>(std::move(mapping))); }

std::string kind_of(const Value& value) {
  if (value.is_undefined() || value.is_missing()) return "an undefined value";
  if (value.is_none()) return "None";
  if (value.is_bool()) return "a boolean";
  if (value.is_integral()) return "an integer";
  if (value.is_float()) return "a float";
  if (value.is_text()) return "a text";
  if (value.is_list()) return "a list";
  if (value.is_tuple()) return "a tuple";
  if (value.is_mapping()) return "a mapping";
  return cat("a ", value.as<Object>()->type_name());
}

bool truth(const Value& value) {
  if (value.is_none() || value.is_undefined() || value.is_missing()) return false;
  if (value.is_integral()) return value.integer() != 0;
  if (value.is_float()) return value.real() != 0;
  if (value.is_text()) return !value.bytes().empty();
  if (const auto& list = value.items()) return !list->values.empty();
  if (value.is_mapping()) return value.mapping().size() > 0;
  const auto size = size_of(value);  // ranges, views and loops have one
  return !size || *size > 0;
}

void refuse_undefined(const Value& value) { raise(*value.undefined_value().reason); }

}  // namespace nemocube::jinja
