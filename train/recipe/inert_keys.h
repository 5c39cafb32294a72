#pragma once
#include <span>
#include <string>
#include <string_view>

#include "train/recipe/types.h"

/// Keys of AutoModel's recipes that have no effect in this build, or that this build accepts only with the
/// value that it has anyway. fields.h has the keys with an effect.
namespace nemocube::recipe {

struct Form;  ///< which values the keys of a row may have

struct InertKeys {
  std::string_view section;  ///< empty for keys of the recipe itself
  std::string_view keys;     ///< separated by blanks
  const Form& form;
  std::string_view meaning;       ///< or the feature that values outside `values` ask for
  std::string_view values = {};   ///< separated by blanks
  std::string_view classes = {};  ///< as Reader::classes()
};

std::span<const InertKeys> inert_keys();

/// Throws Error for a value that a key of the row may not have. The result says whether a message should list
/// the key as one without effect.
bool check_inert(const Place& at, const InertKeys& row);

// For the documentation.
std::string type_of(const InertKeys& row);
const char* effect_of(const InertKeys& row);

}  // namespace nemocube::recipe
