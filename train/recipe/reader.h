#pragma once
#include <array>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "core/dtype.h"
#include "train/recipe/names.h"
#include "train/recipe/value.h"
#include "train/recipe/variables.h"

/// Fills the structs of a recipe from its YAML tree. A visitor of fields.h, as are Writer and KeyList: each
/// section's keys are listed once and read, written and suggested from there.
namespace nemocube::recipe {

struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool above_low = false;  ///< low itself is out
  bool below_high = false;
  bool infinite = false;   ///< infinity is in
  const char* words = "";  ///< in the message: "a positive integer" is words + type
};
inline constexpr Range any{};
inline constexpr Range positive{.low = 0, .above_low = true, .words = "positive "};
inline constexpr Range nonnegative{.low = 0, .words = "nonnegative "};
inline constexpr Range nonnegative_or_infinite{.low = 0, .infinite = true, .words = "nonnegative "};
inline constexpr Range token_count{
    .low = 0, .high = 2147483647, .above_low = true, .words = "positive (at most 2147483647) "};
inline constexpr Range nonnegative_token_count{
    .low = 0, .high = 2147483647, .words = "nonnegative (at most 2147483647) "};
inline constexpr Range below_one{.low = 0, .high = 1, .below_high = true, .words = "0 <= x < 1: a "};

/// Shared by the readers of all sections of a file.
struct Reading {
  std::string file;
  std::vector<std::string> known_paths;  ///< of all sections, for suggestions
  std::vector<std::string> no_effect;
};

class Reader {
 public:
  /// `map`: the section, or null when it is absent.
  Reader(Reading& reading, const Value* map, std::string path);

  bool has(const char* key);
  /// The one of two names that is present; both are an Error.
  const char* either(const char* key, const char* other);

  template <class T>
  void field(const char* key, T& out, Range range = any) {
    if (const Value* value = take(key)) read(*value, path_of(key), out, range);
  }
  /// A key that the struct does not hold as such, so that describe() leaves it out.
  template <class T>
  void hidden(const char* key, T& out, Range range = any) {
    field(key, out, range);
  }
  template <class Fn>
  void section(const char* key, Fn&& fn) {
    const Value* value = take(key);
    Reader sub(reading_, value != nullptr ? as_section(*value, path_of(key)) : nullptr, path_of(key));
    fn(sub);
    sub.finish();
  }
  template <class S, class Fn>
  void optional_section(const char* key, std::optional<S>& out, Fn&& fn) {
    const Value* value = take(key);
    const Value* map = value != nullptr ? as_section(*value, path_of(key)) : nullptr;
    if (map == nullptr) return;
    out.emplace();
    Reader sub(reading_, map, path_of(key));
    fn(sub, *out);
    sub.finish();
  }
  template <class S, class Fn>
  void suffixed_sections(const char* prefix, std::map<std::string, S>& out, Fn&& fn) {
    for (const std::string& key : keys_with(prefix)) {
      std::optional<S> section;
      optional_section(key.c_str(), section, fn);
      if (!section) continue;
      const std::string name = suffix_name(key, prefix);
      require(out.emplace(name, *section).second, where(map_->find(key), path_of(key)),
              ": a second section named '", name, "'");
    }
  }
  template <class S, class Fn>
  void list(const char* key, std::vector<S>& out, Fn&& fn) {
    const Value* value = take(key);
    if (value == nullptr) return;
    const auto items = as_list(*value, path_of(key));
    out.clear();
    for (std::size_t i = 0; i < items.size(); ++i) {
      const std::string path = cat(path_of(key), ".", i);
      const Value* map = as_section(*items[i], path);
      Reader sub(reading_, map, path);
      fn(sub, out.emplace_back());
      sub.finish();
    }
  }
  void word_map(const char* key, std::map<std::string, std::string, std::less<>>& out);
  /// A path, or a section whose pretrained_model_name_or_path is the path.
  void path_or_section(const char* key, std::optional<std::string>& out);
  void signals(const char* key, std::vector<int>& out);

  /// Keys that are accepted and change nothing in this build.
  void ignored(std::initializer_list<const char*> keys);
  /// The same for a section with any keys; a value that is no section is an Error.
  void ignored_section(const char* key);
  /// `_target_` and alike where only one behaviour exists: any of these names, no effect.
  void known_class(const char* key, std::initializer_list<const char*> names);
  /// Accepted when null, empty or one of `values`; anything else is `feature`, which is not in this build.
  void only(const char* key, std::initializer_list<const char*> values, const char* feature);
  [[noreturn]] void refuse(const char* key, const std::string& why) const;

  /// Throws Error naming the first key that nobody took, and the nearest one that exists or, where none is
  /// near, all that the section knows.
  void finish() const;

 private:
  const Value* take(const char* key);
  std::string path_of(std::string_view key) const;
  std::string where(const Value* value, const std::string& path) const;
  std::vector<std::string> keys_with(std::string_view prefix) const;
  std::string suffix_name(const std::string& key, std::string_view prefix) const;
  const Value* as_section(const Value& value, const std::string& path) const;  ///< null: absent
  std::vector<const Value*> as_list(const Value& value, const std::string& path) const;
  [[noreturn]] void wrong(const Value& value, const std::string& path, const std::string& wish) const;
  [[noreturn]] void unknown_key(const Value& value, const std::string& key, const std::string& guess) const;
  std::optional<Scalar> scalar_of(const Value& value, const std::string& path, const std::string& wish) const;

  void read(const Value& value, const std::string& path, bool& out, Range) const;
  void read(const Value& value, const std::string& path, std::int64_t& out, Range range) const;
  void read(const Value& value, const std::string& path, double& out, Range range) const;
  void read(const Value& value, const std::string& path, std::string& out, Range) const;
  void read(const Value& value, const std::string& path, std::optional<DType>& out, Range) const;
  void read(const Value& value, const std::string& path, std::array<double, 2>& out, Range range) const;

  template <class T>
  void read(const Value& value, const std::string& path, std::optional<T>& out, Range range) const {
    const bool is_scalar = value.kind == Value::Kind::scalar;
    if (value.kind == Value::Kind::null || (is_scalar && !resolve_scalar(value, where(&value, path)))) {
      out.reset();
      return;
    }
    read(value, path, out.emplace(), range);
  }

  template <class E>
  requires std::is_enum_v<E>
  void read(const Value& value, const std::string& path, E& out, Range) const {
    std::string known;
    for (const auto& [name, choice] : names_of<E>) known += cat(known.empty() ? "" : ", ", name);
    const std::string word = choice_word(value, path, cat("one of ", known));
    for (const auto& [name, choice] : names_of<E>)
      if (word == name) {
        out = choice;
        return;
      }
    unknown_choice(value, path, word, known);
  }
  std::string choice_word(const Value& value, const std::string& path, const std::string& wish) const;
  [[noreturn]] void unknown_choice(const Value& value, const std::string& path, const std::string& word,
                                   const std::string& known) const;

  Reading& reading_;
  const Value* map_;
  std::string path_;
  std::vector<std::string> taken_;
};

}  // namespace nemocube::recipe
