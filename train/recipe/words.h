#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Lists of words, names of classes, and suggestions for misspelt words.
namespace nemocube::recipe {

std::vector<std::string> words_of(std::string_view separated_by_blanks);
std::string joined(std::span<const std::string> words);  ///< with commas
std::string_view trimmed(std::string_view text);         ///< without blanks and tabs around it
std::string lower_case(std::string_view text);           ///< ASCII letters only

/// The class that a dotted path names: `AdamW` for `torch.optim.AdamW`.
std::string last_component(const std::string& dotted_path);
/// Whether a key of `classes` (words) belongs to the class `word`. Without `classes` a key belongs to every
/// class; an empty `word` stands for a class that is not known, which may have every key.
bool is_for_class(std::string_view classes, std::string_view word);

/// Number of insertions, deletions, replacements and swaps of neighbours that turn `a` into `b` (optimal
/// string alignment), in bytes. Takes a.size() * b.size() time.
std::size_t edit_distance(std::string_view a, std::string_view b);
/// The first of the candidates at the smallest distance to `word`; empty without candidates.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

}  // namespace nemocube::recipe
