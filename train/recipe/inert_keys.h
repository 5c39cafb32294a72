#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "train/recipe/types.h"

/// Keys of AutoModel's recipes that this build reads and does nothing with, or accepts only where their value
/// asks for what it does anyway. All of them are here; fields.h has the keys with an effect.
namespace nemocube::recipe {

struct InertKeys;

/// What values keys may have.
struct Form {
  const char* name;  ///< for the documentation, in front of the values of a row
  void (*check)(const Place& at, const InertKeys& row);
  bool reported = true;  ///< as a key without effect
};

struct InertKeys {
  std::string_view section;  ///< empty for keys of the recipe itself
  std::string_view keys;     ///< separated by blanks
  const Form& form;
  std::string_view meaning;       ///< or the feature that other values than `values` ask for
  std::string_view values = {};   ///< separated by blanks
  std::string_view classes = {};  ///< as Reader::classes()
};

extern const Form anything;
/// Null, nothing in brackets or one of `values`, which say what happens anyway.
extern const Form only;

std::span<const InertKeys> inert_keys();
/// The rows of a section that list `key`, whatever class they are for.
std::vector<const InertKeys*> find_inert(std::string_view section, std::string_view key);
/// Whether all keys of a section or of sections in it are here.
bool is_inert_section(std::string_view section);

std::string type_of(const InertKeys& row);

std::vector<std::string> words_of(std::string_view separated_by_blanks);
std::string joined(const std::vector<std::string>& words);  ///< with commas
/// Whether a class is meant: by name, by an empty list, or because the class is unknown (empty).
bool is_for_class(std::string_view classes, std::string_view word);

}  // namespace nemocube::recipe
