#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "train/recipe/types.h"

/// Keys of AutoModel's recipes that have no effect in this build, or that it accepts only with the value that
/// describes what it does anyway. fields.h has the keys with an effect.
namespace nemocube::recipe {

struct InertKeys;

/// Which values the keys of a row may have.
struct Form {
  const char* name;  ///< for the documentation, in front of the values of a row
  void (*check)(const Place& at, const InertKeys& row);
  bool reported = true;  ///< whether a message lists the key as one without effect
};

struct InertKeys {
  std::string_view section;  ///< empty for keys of the recipe itself
  std::string_view keys;     ///< separated by blanks
  const Form& form;
  std::string_view meaning;       ///< or the feature that values outside `values` ask for
  std::string_view values = {};   ///< separated by blanks
  std::string_view classes = {};  ///< as Reader::classes()
};

extern const Form anything;
/// Accepts null, an empty list or section, and `values`, which describe what this build does anyway.
extern const Form only;

std::span<const InertKeys> inert_keys();
/// The rows of a section that list `key`, whatever class they are for.
std::vector<const InertKeys*> find_inert(std::string_view section, std::string_view key);
/// Whether every key of a section, and of the sections in it, is in this list.
bool is_inert_section(std::string_view section);

std::string type_of(const InertKeys& row);

std::vector<std::string> words_of(std::string_view separated_by_blanks);
std::string joined(const std::vector<std::string>& words);  ///< with commas
/// Whether a row for `classes` applies to the class `word`: `classes` contains `word`, or one of the two is
/// empty.
bool is_for_class(std::string_view classes, std::string_view word);

}  // namespace nemocube::recipe
