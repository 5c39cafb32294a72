#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

/// Suggestions for misspelt names.
namespace nemocube::recipe {

/// Number of insertions, deletions, replacements and swaps of neighbours that turn `a` into `b` (optimal
/// string alignment), in bytes. Takes a.size() * b.size() time.
std::size_t edit_distance(std::string_view a, std::string_view b);
/// The first of the candidates at the smallest distance to `word`; empty without candidates.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

}  // namespace nemocube::recipe
