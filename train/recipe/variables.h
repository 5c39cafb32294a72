#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "train/recipe/value.h"

/// Environment variables in the values of a recipe: ${VAR}, ${VAR,default}, ${oc.env:VAR}, $VAR. `$$` before
/// a name or a brace is a plain `$`.
namespace nemocube::recipe {

struct Scalar {
  std::string text;
  bool plain = true;  ///< written without quotes and without variables: the look of the text decides its type
};

/// A scalar with its variables expanded, or nothing for null. The strings `none` and `None` are null, quoted
/// or not. Throws Error starting with `where` when a variable is not set or when the expanded text exceeds 1
/// MiB.
std::optional<Scalar> resolve_scalar(const Value& value, const std::string& where);

/// The inverse of the expansion: doubles each `$` that would start a variable.
std::string escape_variables(std::string_view text);

}  // namespace nemocube::recipe
