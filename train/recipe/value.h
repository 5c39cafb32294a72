#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

}  // namespace nemocube::recipe
