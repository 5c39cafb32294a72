#pragma once
#include <concepts>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/recipe/inert_keys.h"
#include "train/recipe/reading.h"
#include "train/recipe/words.h"

/// Fills the structs of a recipe from its YAML tree: the visitor of fields.h that reads. Problems are
/// collected in Reading; reading continues after each.
namespace nemocube::recipe {

class Reader {
 public:
  /// `map`: a section at `path`. `kind`: the name of its rows in inert_keys();
  /// `validation_dataset` has the keys of `dataset`.
  Reader(Reading& reading, const Value& map, std::string path, std::string kind)
      : reading_(reading), map_(map), path_(std::move(path)), kind_(std::move(kind)) {}

  /// The key `_target_`: the class that a section describes.
  template <class E>
  void target(E& out, const char*, bool required = false) {
    const Outcome outcome = read_key("_target_", out, any);
    has_classes_ = true;
    if (outcome == Outcome::absent && required)
      wanted_class_ = show(out, any).wish;
    else if (outcome != Outcome::wrong)
      class_ = name_of_choice(out);
  }
  /// A class that has a key of its own. `_target_` may say a name of
  /// Class instead, whose values are those of E.
  template <class Class, class E>
  void named_target(const char* key, E& out, const char*) {
    const Outcome named = read_key(key, out, or_default);
    auto target = static_cast<Class>(out);
    const Outcome typed = read_key("_target_", target, any);
    if (named == Outcome::wrong || typed == Outcome::wrong) return;
    if (named == Outcome::read || typed == Outcome::absent) class_key_ = key;
    const auto meant = static_cast<E>(target);
    const bool from_command_line = named == Outcome::read && map_.find(key)->line == 0;
    if (meant != out && from_command_line && map_.find("_target_")->line > 0)
      reading_.no_effect.push_back(path_of("_target_"));
    else if (meant != out && named == Outcome::read)
      reading_.rule(false, {path_of("_target_")}, "is the class of ", name_of_choice(meant), ", but ",
                    path_of(key), " is ", name_of_choice(out), "; want one of them, or classes that agree");
    else
      out = meant;
    class_ = name_of_choice(out);
  }
  /// The fields that follow belong to these classes only, written as in text_of() and separated by blanks.
  /// Without names they belong to all classes.
  void classes(std::string_view names) { classes_ = names; }

  template <class T>
  void field(const char* key, T& out, const char*, Range range = any) {
    read_key(key, out, range);
  }
  /// A second spelling of the key at `path`, counted from the root: the values must be equal if both are
  /// given.
  template <class T>
  void alias(const char* key, T& out, const std::string& path, Range range = any) {
    T other = out;
    if (reading_.given(path)) spare_.push_back(key);
    if (read_key(key, other, range) != Outcome::read || reading_.any_faulty({path})) return;
    if (reading_.given(path) && other != out)
      reading_.rule(false, {path_of(key)}, "is ", text_of(other), ", but ", path, " is ", text_of(out),
                    "; want one of them, or equal values");
    else
      out = other;
  }
  /// A value, or a section with the one key `inner`, which has that value. `kind`: of that section, see
  /// section().
  template <class T>
  void value_or_section(const char* key, const char* inner, T& out, const char*, Range range,
                        const char* kind = nullptr) {
    const Value* value = map_.find(key);
    if (value != nullptr && value->kind == Value::Kind::map)
      section(
          key, [&](Reader& sub) { sub.field(inner, out, "", range); }, kind);
    else
      field(key, out, "", range);
  }
  /// A path, or a section whose pretrained_model_name_or_path is the path.
  template <class T>
  void path_or_section(const char* key, T& out, const char* meaning) {
    value_or_section(key, "pretrained_model_name_or_path", out, meaning, any, "tokenizer");
  }
  /// `contents`: the struct of a section, or a function that visits its fields. An absent or null section
  /// leaves the struct as it is.
  template <class S>
  void section(const char* key, S&& contents, const char* kind = nullptr) {
    if (const Value* value = take(key)) open(key, *value, kind != nullptr ? kind : kind_of(key), contents);
  }
  /// A second place of the section at `path`, counted from the root: only one of them may be given.
  template <class S>
  void alias_section(const char* key, S& contents, const std::string& path) {
    const Value* value = take(key);
    if (value == nullptr) return;
    reading_.attempt(value, path_of(key), [&] {
      const bool both = as_section(place(key, *value)) != nullptr && reading_.given(path);
      require(!both, where(key), ": is another name of ", path, ", which is given as well; want one of them");
      open(key, *value, path, contents);
    });
  }
  /// All sections whose key begins with `prefix`; the rest of the key names them.
  template <class S>
  void sections(std::string_view prefix, std::map<std::string, S>& out, const char* kind) {
    for (const auto& [key, value] : map_.entries)
      if (key.starts_with(prefix) && take(key) != nullptr)
        open(key, value, kind, [&, &name = key](Reader& sub) {
          const auto [at, is_new] = out.emplace(suffix_name(name, prefix), S{});
          require(is_new, where(name), ": a second section named '", at->first, "'");
          at->second.key = name;
          fields(sub, at->second);
        });
  }
  template <class S>
  void list(const char* key, std::vector<S>& out, const char*) {
    const Value* value = take(key);
    if (value == nullptr) return;
    out.clear();
    reading_.attempt(value, path_of(key), [&] {
      if (value->kind != Value::Kind::list && !is_null(place(key, *value)))
        wrong(place(key, *value), "a list");
    });
    for (std::size_t i = 0; i < value->items.size(); ++i)
      open(cat(key, ".", i), value->items[i], kind_of(key), out.emplace_back(), Null::refused);
  }

  /// Handles the keys that no field took: keys without effect, and unknown keys, which are problems.
  void finish();

 private:
  enum class Outcome { absent, wrong, read };
  enum class Null { absent, refused };

  template <class S>
  void open(const std::string& key, const Value& value, std::string kind, S&& contents,
            Null null = Null::absent) {
    reading_.attempt(&value, path_of(key), [&] {
      const Value* map = as_section(place(key, value));
      if (map == nullptr && null == Null::refused) wrong(place(key, value), "a section of keys");
      if (map == nullptr) return;
      Reader sub(reading_, *map, path_of(key), std::move(kind));
      visit(sub, emplaced(contents));
      sub.finish();
    });
  }
  template <class S>
  static S& emplaced(S& section) {
    return section;
  }
  template <class S>
  static S& emplaced(std::optional<S>& section) {
    return section.emplace();
  }
  /// Null on the command line takes a key out of the recipe.
  template <class T>
  Outcome read_key(const char* key, T& out, Range range) {
    const Value* value = take(key);
    if (value == nullptr) return Outcome::absent;
    Outcome outcome = Outcome::read;
    const bool right = reading_.attempt(value, path_of(key), [&] {
      const Place at = place(key, *value);
      const bool can_remove = !takes_null<T> && (range.null_is_default || value->line == 0);
      if (can_remove && is_null(at))
        outcome = Outcome::absent;
      else
        read(at, out, range);
      note_variables(at);
    });
    return right ? outcome : Outcome::wrong;
  }

  std::string path_of(std::string_view key) const {
    return path_.empty() ? std::string(key) : cat(path_, ".", key);
  }
  std::string kind_of(std::string_view key) const {
    return kind_.empty() ? std::string(key) : cat(kind_, ".", key);
  }
  std::string where(const std::string& key) const { return reading_.where(map_.find(key), path_of(key)); }
  Place place(const std::string& key, const Value& value) const {
    return {value, path_of(key), reading_.where(&value, path_of(key))};
  }
  void note_variables(const Place& at);
  /// Records the key as known. Returns its value, or null when the key is absent or belongs to another class.
  const Value* take(const std::string& key);
  std::string suffix_name(const std::string& key, std::string_view prefix) const;
  void key_of_other_class(const std::string& key, const Value& value, const std::string& classes);
  [[noreturn]] void unknown_key(const std::string& key);

  Reading& reading_;
  const Value& map_;
  std::string path_, kind_;
  std::string class_key_ = "_target_";
  bool has_classes_ = false;  ///< whether keys may belong to classes
  std::string class_;         ///< name of the class, empty when there is none or it is wrong
  std::string classes_;       ///< that the next fields belong to
  std::string wanted_class_;  ///< the right value of a missing _target_
  std::vector<std::string> known_, known_of_every_class_;
  std::vector<std::string> spare_;  // second spellings of keys that are given: no help to suggest
  std::map<std::string, std::string> of_other_class_;  ///< key to its classes
};

}  // namespace nemocube::recipe
