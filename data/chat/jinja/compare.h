#pragma once
#include "data/chat/jinja/value.h"

/// Python's comparisons. They spend steps, because values may hold the same list many times.
namespace nemocube::jinja {

bool equal(const Value& a, const Value& b, Budget& budget);
/// Python's comparison of items of lists and values of mappings: the same object equals itself, NaN too.
bool same_or_equal(const Value& a, const Value& b, Budget& budget);
/// a < b for numbers, texts, lists and tuples. Throws Failure for values of other or different types.
bool less(const Value& a, const Value& b, Budget& budget);
/// Throws Failure for lists, mappings and others that Python cannot hash.
std::uint64_t hash_of(const Value& value, Budget& budget);

}  // namespace nemocube::jinja
