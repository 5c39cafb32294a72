#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

/// The YAML tree under a recipe. Scalars stay text until somebody asks for a type, because YAML 1.1 and the
/// recipes disagree: `1e-8` is a string to YAML and a number to a recipe, `none` a string and an absence.
namespace nemocube::recipe {

struct Entry;

struct Value {
  enum class Kind { null, scalar, list, map };
  Kind kind = Kind::null;
  std::string text;     ///< of a scalar; no NUL bytes
  bool quoted = false;  ///< the scalar was written in quotes, and is text even if it looks like a number
  std::vector<Value> items;
  std::vector<Entry> entries;  ///< in file order, keys unique and fit for messages
  int line = 0;                ///< 1-based; 0: came from an override

  const Value* find(std::string_view key) const;
};

/// One key of a map, and its value.
struct Entry {
  std::string key;
  Value value;
};

/// Limits of a tree, aliases expanded. They are far above the needs of recipes and bound time and memory
/// for any file.
inline constexpr std::size_t max_yaml_bytes = 1u << 20;  ///< of a file
inline constexpr std::size_t max_text_bytes = 4u << 20;  ///< of all keys and scalars together
inline constexpr std::size_t max_values = 100'000;       ///< keys included
inline constexpr int max_depth = 64;

/// Throws Error "<where>: ..." for a key that is empty, longer than 200 bytes or not printable.
void check_key(std::string_view key, const std::string& where);

/// Reads one YAML document from a file or from a text; `name` is the text's name in messages. Throws Error
/// "<name>: ..." or "<name>:<line>: ..." for damage, several documents, keys that occur twice in a section or
/// fail check_key(), and for trees beyond the limits.
Value read_yaml(const std::filesystem::path& path);
Value parse_yaml(const std::string& text, const std::string& name);
/// The same for YAML inside another text, such as an override: messages start with "<where>: ", and all
/// values get the line `line`.
Value parse_yaml_value(const std::string& text, const std::string& where, int line);

/// Applies "a.b.c=value", value in YAML; absent sections are created. Numeric parts index lists; the index
/// one past the end appends. Throws Error naming the override.
void apply_override(Value& root, std::string_view assignment);

}  // namespace nemocube::recipe
