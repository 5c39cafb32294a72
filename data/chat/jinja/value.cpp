#include "data/chat/jinja/value.h"

#include <algorithm>
#include <bit>

#include "data/chat/jinja/compare.h"
#include "data/chat/jinja/objects.h"
#include "data/chat/jinja/text.h"

namespace nemocube::jinja {

namespace {

constexpr std::size_t linear_search_up_to = 12;  // entries, in which a search without an index is fast
constexpr std::uint32_t no_entry = 0xffffffff;   // an empty slot

std::shared_ptr<const Items> freeze(std::vector<Value> values, Budget& budget, bool grouping) {
  budget.spend_items(values.size());
  budget.spend_memory(Budget::bytes_of_text + values.size() * Budget::bytes_of_value);
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

std::size_t Mapping::first_slot(std::uint64_t hash) const {
  hash = (hash ^ (hash >> 32)) * 0x9e3779b97f4a7c15u;  // numbers are their own hashes
  return (hash ^ (hash >> 32)) & (slots_.size() - 1);
}

template <class IsKey>
std::optional<std::size_t> Mapping::position(std::uint64_t hash, Budget& budget, IsKey&& is_key) const {
  if (slots_.empty()) {
    for (std::size_t i = 0; i < entries_.size(); ++i)
      if (is_key(entries_[i].first)) return i;
    return std::nullopt;
  }
  for (std::size_t slot = first_slot(hash); slots_[slot] != no_entry;
       slot = (slot + 1) & (slots_.size() - 1)) {
    budget.spend();
    const std::size_t entry = slots_[slot];
    if (hashes_[entry] == hash && is_key(entries_[entry].first)) return entry;
  }
  return std::nullopt;
}

void Mapping::index(std::size_t entry, Budget& budget) {
  std::size_t slot = first_slot(hashes_[entry]);
  for (; slots_[slot] != no_entry; slot = (slot + 1) & (slots_.size() - 1)) budget.spend();
  slots_[slot] = static_cast<std::uint32_t>(entry);
}

/// Makes room for twice as many entries.
void Mapping::grow(Budget& budget) {
  if (hashes_.empty())
    for (const auto& [key, value] : entries_) hashes_.push_back(hash_of(key, budget));
  const std::size_t slots = std::bit_ceil(4 * entries_.size());
  budget.spend(entries_.size());
  budget.spend_memory(slots * sizeof(std::uint32_t));
  slots_.assign(slots, no_entry);
  for (std::size_t i = 0; i < hashes_.size(); ++i) index(i, budget);
}

const Value* Mapping::find(const Value& key, Budget& budget) const {
  const auto found =
      position(hash_of(key, budget), budget, [&](const Value& other) { return equal(other, key, budget); });
  return found ? &entries_[*found].second : nullptr;
}

const Value* Mapping::find_text(std::string_view key, Budget& budget) const {
  budget.spend(1 + key.size() / 64);
  const std::uint64_t hash = slots_.empty() ? 0 : std::hash<std::string_view>()(key);
  const auto found =
      position(hash, budget, [&](const Value& other) { return other.is_text() && other.bytes() == key; });
  return found ? &entries_[*found].second : nullptr;
}

void Mapping::set(Value key, Value value, Budget& budget) {
  const std::uint64_t hash = hash_of(key, budget);
  depth_ = std::max({depth_, 1 + key.depth(), 1 + value.depth()});
  if (depth_ > budget.limits().value_depth)
    raise("lists and mappings are nested more than ", budget.limits().value_depth, " deep");
  const auto found = position(hash, budget, [&](const Value& other) { return equal(other, key, budget); });
  if (found) {
    entries_[*found].second = std::move(value);
    return;
  }
  if (entries_.size() >= budget.limits().items)
    raise("the template makes a mapping of more than ", budget.limits().items, " keys");
  budget.spend();
  budget.spend_memory(sizeof(Entry) + sizeof(hash));
  entries_.emplace_back(std::move(key), std::move(value));
  if (entries_.size() <= linear_search_up_to) return;
  if (!slots_.empty()) {
    hashes_.push_back(hash);
    index(entries_.size() - 1, budget);
  }
  if (2 * entries_.size() > slots_.size()) grow(budget);
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
