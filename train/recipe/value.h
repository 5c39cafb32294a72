#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"

/// The YAML tree under a recipe. Scalars stay text until somebody asks for a type, because YAML 1.1 and the
/// recipes disagree: `1e-8` is a string to YAML and a number to a recipe, `none` a string and an absence.
namespace nemocube::recipe {

struct Value {
  enum class Kind { null, scalar, list, map };
  Kind kind = Kind::null;
  std::string text;     ///< of a scalar
  bool quoted = false;  ///< the scalar was written in quotes, so it is text even if it looks like a number
  std::vector<Value> items;
  std::vector<std::pair<std::string, Value>> entries;  ///< in file order, keys unique
  int line = 0;                                        ///< 1-based; 0: came from an override

  const Value* find(std::string_view key) const;
};

/// Reads a file or text holding one YAML document. `name` stands for the file in messages. Throws Error with
/// file and line for damage, duplicate keys, several documents, or trees too deep or too large.
Value read_yaml(const std::filesystem::path& path);
Value parse_yaml(const std::string& text, const std::string& name);

/// Applies "a.b.c=value", value in YAML; absent sections are created. Numeric parts index lists; the index
/// one past the end appends. Throws Error naming the override.
void apply_override(Value& root, std::string_view assignment);

/// A scalar with its variables expanded, or nothing for null. The strings `none` and `None` are null, quoted
/// or not. Expanded: ${VAR}, ${VAR,default}, ${oc.env:VAR}, $VAR; `$$` before a name or brace is a plain `$`.
/// Throws Error starting with `where` for a variable that is not set.
struct Scalar {
  std::string text;
  bool plain = true;  ///< written without quotes and without variables: its look decides its type
};
std::optional<Scalar> resolve_scalar(const Value& value, const std::string& where);
/// The inverse of the expansion: doubles each `$` that would start a variable.
std::string escape_variables(std::string_view text);

/// Decimal numbers as YAML and Python write them: 1, -2, 1_000, 1e-8, .5, .inf, -.inf, inf. nan is none.
std::optional<double> parse_real(std::string_view text);
/// The same, exactly integral and within 64 bits; 1e3 and 20.0 are integers.
std::optional<std::int64_t> parse_integer(std::string_view text);
/// true/false, yes/no, on/off in any case.
std::optional<bool> parse_flag(std::string_view text);

/// Number of insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
std::size_t edit_distance(std::string_view a, std::string_view b);
/// The candidate nearest to `word`; empty only when there are none.
std::string nearest(std::string_view word, std::span<const std::string> candidates);

}  // namespace nemocube::recipe
