#pragma once
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/error.h"
#include "train/recipe/distributed.h"
#include "train/recipe/names.h"
#include "train/recipe/value.h"
#include "train/recipe/words.h"

/// The types of keys. read() takes a value of a type from the YAML tree and throws Error for other values;
/// show() describes the values that read() accepts, and writes a value so that read() returns the same value.
namespace nemocube::recipe {

struct Shown {
  std::string wish;  ///< the type and its range, for messages and for the documentation
  std::string text;  ///< the value in YAML; empty for an absent key
};

struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool above_low = false;  ///< low itself is not allowed
  bool below_high = false;
  bool infinite = false;         ///< infinity is allowed
  bool null_is_default = false;  ///< an explicit null is no error
};
inline constexpr Range any{};
inline constexpr Range or_default{.null_is_default = true};
inline constexpr Range positive{.low = 0, .above_low = true};
inline constexpr Range nonnegative{.low = 0};
inline constexpr Range token_count{.low = 1, .high = 2147483647};
inline constexpr Range token_count_or_zero{.low = 0, .high = 2147483647};
inline constexpr Range below_one{.low = 0, .high = 1, .below_high = true};

/// A value, its key path, and the text that messages about it begin with (file, line and path).
struct Place {
  const Value& value;
  std::string path, where;
};
bool is_null(const Place& at);
std::string found(const Value& value);  ///< as messages describe the value: 'text', null, a list, a section
[[noreturn]] void wrong(const Place& at, const std::string& wish);  ///< "where: want wish, found ..."
/// The map of a section, or nothing for null.
const Value* as_section(const Place& at);

void read(const Place& at, bool& out, Range range);
void read(const Place& at, std::int64_t& out, Range range);
void read(const Place& at, double& out, Range range);
void read(const Place& at, std::string& out, Range range);
void read(const Place& at, std::optional<DType>& out, Range range);  ///< nothing for auto
void read(const Place& at, std::array<double, 2>& out, Range range);
void read(const Place& at, std::vector<int>& out, Range range);  ///< signals
void read(const Place& at, std::map<std::string, std::string, std::less<>>& out, Range range);
void read(const Place& at, std::vector<std::string>& out, Range range);  ///< or one text
void read(const Place& at, std::vector<std::vector<std::string>>& out, Range range);
void read(const Place& at, FileList& out, Range range);
void read(const Place& at, VariableText& out, Range range);
void read(const Place& at, RecipeClass& out, Range range);
void read(const Place& at, NeftuneSetting& out, Range range);
void read(const Place& at, TemplateVariables& out, Range range);
/// A section, the name of a plan, or a file that holds a section. Throws Error for unknown words, with the
/// nearest known one.
void read(const Place& at, TensorPlanSection& out, Range range);

Shown show(bool value, Range range);
Shown show(std::int64_t value, Range range);
Shown show(double value, Range range);
Shown show(const std::string& value, Range range);
Shown show(const std::optional<DType>& value, Range range);
Shown show(const std::array<double, 2>& value, Range range);
Shown show(const std::vector<int>& value, Range range);
Shown show(const std::map<std::string, std::string, std::less<>>& value, Range range);
Shown show(const std::vector<std::string>& value, Range range);
Shown show(const std::vector<std::vector<std::string>>& value, Range range);
Shown show(const FileList& value, Range range);
Shown show(const VariableText& value, Range range);
Shown show(const RecipeClass& value, Range range);
Shown show(const NeftuneSetting& value, Range range);
Shown show(const TemplateVariables& value, Range range);
Shown show(const TensorPlanSection& value, Range range);  ///< the rules of a file as a section
std::string key_in_quotes(const std::string& key);

template <class T>
std::string text_of(const T& value) {
  return show(value, any).text;
}

/// The index of the value in `names`. Throws Error listing `names` for another word. With `class_noun`
/// ("class") the value is a class by its dotted path, of which the last component counts.
std::size_t read_choice(const Place& at, const std::vector<std::string>& names,
                        const char* class_noun = nullptr);

template <class E>
std::vector<std::string> choices() {
  std::vector<std::string> names;
  for (const auto& [name, value] : names_of<E>) names.push_back(name);
  return names;
}

template <class E>
requires std::is_enum_v<E>
void read(const Place& at, E& out, Range) {
  const bool is_class = at.path.ends_with("_target_");
  out = names_of<E>[read_choice(at, choices<E>(), is_class ? "class" : nullptr)].value;
}
template <class E>
requires std::is_enum_v<E> Shown show(E value, Range) {
  return {"one of " + joined(choices<E>()), name_of_choice(value)};
}

template <class T>
void read(const Place& at, std::optional<T>& out, Range range) {
  out.reset();
  if (!is_null(at)) read(at, out.emplace(), range);
}
template <class T>
Shown show(const std::optional<T>& value, Range range) {
  return {show(T{}, range).wish + " or null", value ? text_of(*value) : "null"};
}

/// Values by name, in the order of the file. An entry that is null on the command line is left out.
template <class T>
using Named = std::vector<std::pair<std::string, T>>;
template <class T>
void read(const Place& at, Named<T>& out, Range range) {
  const Value* map = as_section(at);
  out.clear();
  if (map == nullptr) return;
  for (const auto& [name, value] : map->entries) {
    const Place place{value, cat(at.path, ".", name), cat(at.where, ".", name)};
    if (value.line > 0 || !is_null(place)) read(place, out.emplace_back(name, T{}).second, range);
  }
}
template <class T>
Shown show(const Named<T>& values, Range range) {
  std::vector<std::string> entries;
  for (const auto& [name, value] : values) entries.push_back(cat(key_in_quotes(name), ": ", text_of(value)));
  return {cat("a section; each entry is ", show(T{}, range).wish), cat("{", joined(entries), "}")};
}

/// Tells an absent key, null and a value apart.
template <class T>
using MaybeAbsent = std::optional<std::optional<T>>;
template <class T>
void read(const Place& at, MaybeAbsent<T>& out, Range range) {
  read(at, out.emplace(), range);
}
template <class T>
Shown show(const MaybeAbsent<T>& value, Range range) {
  return {show(std::optional<T>{}, range).wish, value ? text_of(*value) : ""};
}

/// Whether null is a value of the type rather than no value.
template <class T>
inline constexpr bool takes_null = false;
template <class T>
inline constexpr bool takes_null<std::optional<T>> = true;
template <>
inline constexpr bool takes_null<std::vector<int>> = true;
template <>
inline constexpr bool takes_null<std::vector<std::string>> = true;
template <>
inline constexpr bool takes_null<std::vector<std::vector<std::string>>> = true;
template <>
inline constexpr bool takes_null<TemplateVariables> = true;
template <>
inline constexpr bool takes_null<TensorPlanSection> = true;
template <class T>
inline constexpr bool takes_null<Named<T>> = true;
template <class K, class V, class C>
inline constexpr bool takes_null<std::map<K, V, C>> = true;

}  // namespace nemocube::recipe
