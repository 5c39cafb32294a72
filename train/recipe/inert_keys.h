#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Keys of AutoModel's recipes that this build reads and does nothing with, or accepts only where their value
/// asks for what it does anyway. All of them are here; fields.h has the keys with an effect.
namespace nemocube::recipe {

enum class Accepts {
  anything,
  flag,        ///< true or false
  whole,       ///< an integer from 0
  count,       ///< an integer from 1
  number,      ///< from 0
  above_zero,  ///< a number above 0
  section,     ///< with any keys
  choice,      ///< one of `values`
  only,        ///< null, nothing in brackets or one of `values`, which say what happens anyway
  class_name,  ///< a class or function, last component in `values`
};

struct InertKeys {
  std::string_view section;  ///< empty for keys of the recipe itself
  std::string_view keys;     ///< separated by blanks
  Accepts accepts;
  std::string_view meaning;       ///< accepts only: the feature that other values ask for
  std::string_view values = {};   ///< separated by blanks
  std::string_view classes = {};  ///< as Reader::classes()
};

std::span<const InertKeys> inert_keys();
/// The rows of a section that list `key`, whatever class they are for.
std::vector<const InertKeys*> find_inert(std::string_view section, std::string_view key);
/// Whether all keys of a section or of sections in it are here.
bool is_inert_section(std::string_view section);

std::vector<std::string> words_of(std::string_view separated_by_blanks);
/// Whether a class is meant: by name, by an empty list, or because the class is unknown (empty).
bool is_for_class(std::string_view classes, std::string_view word);

}  // namespace nemocube::recipe
