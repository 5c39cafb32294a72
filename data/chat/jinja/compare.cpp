#include "data/chat/jinja/compare.h"

#include <algorithm>
#include <cmath>
#include <compare>
#include <functional>

#include "data/chat/jinja/numbers.h"
#include "data/chat/jinja/objects.h"

namespace nemocube::jinja {

namespace {

std::partial_ordering order_of_numbers(Integer a, double b) {
  if (std::isnan(b)) return std::partial_ordering::unordered;
  if (!fits_integer(b)) return b > 0 ? std::partial_ordering::less : std::partial_ordering::greater;
  const double whole = std::trunc(b);
  const auto whole_integer = static_cast<Integer>(whole);
  if (a != whole_integer) return a <=> whole_integer;
  return whole <=> b;
}

std::partial_ordering order_of_numbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return a.integer() <=> b.integer();
  if (a.is_integral()) return order_of_numbers(a.integer(), b.real());
  if (b.is_integral()) return 0 <=> order_of_numbers(b.integer(), a.real());
  return a.real() <=> b.real();
}

bool equal_items(const Items& a, const Items& b, Budget& budget) {
  return a.values.size() == b.values.size() &&
         std::equal(a.values.begin(), a.values.end(), b.values.begin(),
                    [&](const Value& x, const Value& y) { return same_or_equal(x, y, budget); });
}

bool equal_mappings(const Mapping& a, const Mapping& b, Budget& budget) {
  return a.size() == b.size() && std::ranges::all_of(a.entries(), [&](const Mapping::Entry& entry) {
           const Value* other = b.find(entry.first, budget);
           return other && same_or_equal(entry.second, *other, budget);
         });
}

bool equal_ranges(const Range& a, const Range& b) {
  return a.size == b.size && (a.size == 0 || (a.start == b.start && (a.size == 1 || a.step == b.step)));
}

bool less_items(const Items& a, const Items& b, Budget& budget) {
  const std::size_t shared = std::min(a.values.size(), b.values.size());
  for (std::size_t i = 0; i < shared; ++i)
    if (!equal(a.values[i], b.values[i], budget)) return less(a.values[i], b.values[i], budget);
  return a.values.size() < b.values.size();
}

}  // namespace

bool same_or_equal(const Value& a, const Value& b, Budget& budget) {
  budget.spend();
  return a.same_as(b) || equal(a, b, budget);
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  const Budget::Level level(budget);
  budget.spend();
  if (a.is_number() && b.is_number()) return order_of_numbers(a, b) == 0;
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.is_text() && b.is_text()) {
    if (a.bytes().size() != b.bytes().size()) return false;
    budget.spend(a.bytes().size() / 64);
    return a.bytes() == b.bytes();
  }
  if (a.is_list() && b.is_list()) return equal_items(*a.items(), *b.items(), budget);
  if (a.is_tuple() && b.is_tuple()) return equal_items(*a.items(), *b.items(), budget);
  if (a.is_mapping() && b.is_mapping()) return equal_mappings(a.mapping(), b.mapping(), budget);
  if (const auto* x = a.as<Range>(), *y = b.as<Range>(); x && y) return equal_ranges(*x, *y);
  return a.same_as(b);
}

bool less(const Value& a, const Value& b, Budget& budget) {
  const Budget::Level level(budget);
  budget.spend();
  for (const Value* value : {&a, &b})
    if (value->is_undefined()) refuse_undefined(*value);
  if (a.is_number() && b.is_number()) return order_of_numbers(a, b) < 0;
  if (a.is_text() && b.is_text()) {
    budget.spend(std::min(a.bytes().size(), b.bytes().size()) / 64);
    return a.bytes() < b.bytes();
  }
  if (a.is_list() && b.is_list()) return less_items(*a.items(), *b.items(), budget);
  if (a.is_tuple() && b.is_tuple()) return less_items(*a.items(), *b.items(), budget);
  raise("want two numbers, two texts, two lists or two tuples to compare by size, got ", kind_of(a), " and ",
        kind_of(b));
}

std::uint64_t hash_of(const Value& value, Budget& budget) {
  const Budget::Level level(budget);
  budget.spend();
  if (value.is_integral()) return std::hash<std::uint64_t>()(static_cast<std::uint64_t>(value.integer()));
  if (value.is_float()) {
    const double real = value.real();
    if (fits_integer(real) && real == std::trunc(real)) return hash_of(static_cast<Integer>(real), budget);
    return std::hash<double>()(real);
  }
  if (value.is_text()) {
    budget.spend(value.bytes().size() / 64);
    return std::hash<std::string>()(value.bytes());
  }
  if (value.is_tuple()) {
    std::uint64_t hash = 17;
    for (const Value& item : value.items()->values) hash = hash * 1000003 ^ hash_of(item, budget);
    return hash;
  }
  if (value.is_list() || value.is_mapping() || value.as<View>())
    raise("want a number, a text, None or a tuple of them as a key, got ", kind_of(value));
  return std::hash<const void*>()(value.as<Object>());  // None and undefined values share one
}

}  // namespace nemocube::jinja
