#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "train/recipe/inert_keys.h"
#include "train/recipe/reading.h"

/// Fills the structs of a recipe from its YAML tree: a visitor of fields.h, as is KeyList. Problems
/// are collected in Reading; reading continues after each.
namespace nemocube::recipe {

class Reader {
 public:
  /// `map`: a section at `path`. `kind`: what its rows in inert_keys() are called; `validation_dataset` has
  /// the keys of `dataset`.
  Reader(Reading& reading, const Value& map, std::string path, std::string kind)
      : reading_(reading), map_(map), path_(std::move(path)), kind_(std::move(kind)) {}

  /// The key `_target_`: the class that a section describes.
  template <class E>
  void target(E& out, const char*, bool required = false) {
    const Value* value = take("_target_");
    if (value != nullptr && (value->line > 0 || !is_null(place("_target_", *value)))) {
      if (read_key("_target_", out, any)) class_ = name_of_choice(out);
    } else if (required) {
      wanted_class_ = wish_for(&out, any);
    } else {
      class_ = name_of_choice(out);
    }
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
    if (!read_key(key, other, range) || reading_.any_faulty({path})) return;
    if (reading_.given(path) && other != out)
      reading_.rule(false, {path_of(key)}, "is ", text_of(other), ", but ", path, " is ", text_of(out),
                    "; want one of them, or equal values");
    else
      out = other;
  }
  /// A path, or a section whose pretrained_model_name_or_path is the path.
  template <class T>
  void path_or_section(const char* key, T& out, const char*) {
    const Value* value = take(key);
    if (value == nullptr || value->kind != Value::Kind::map) return void(read_key(key, out, any));
    Reader sub(reading_, *value, path_of(key), "tokenizer");
    sub.field("pretrained_model_name_or_path", out, "");
    sub.finish();
  }
  /// `fn` gets a Reader of the section, unless the section is absent or null.
  template <class Fn>
  void section(const char* key, Fn&& fn, const char* kind = nullptr) {
    subsection(key, kind != nullptr ? std::string(kind) : kind_of(key), fn);
  }
  template <class S, class Fn>
  void optional_section(const char* key, std::optional<S>& out, Fn&& fn) {
    section(key, [&](Reader& sub) { fn(sub, out.emplace()); });
  }
  /// All sections whose key begins with `prefix`; the rest of the key names them.
  template <class S, class Fn>
  void sections(const char* prefix, std::map<std::string, S>& out, Fn&& fn, const char* kind) {
    for (const std::string& key : keys_with(prefix))
      subsection(key, kind, [&](Reader& sub) {
        reading_.attempt(map_.find(key), path_of(key), [&] {
          const auto [at, is_new] = out.emplace(suffix_name(key, prefix), S{});
          require(is_new, where(key), ": a second section named '", at->first, "'");
          at->second.key = key;
          fn(sub, at->second);
        });
      });
  }
  template <class S, class Fn>
  void list(const char* key, std::vector<S>& out, const char*, Fn&& fn) {
    const Value* value = take(key);
    if (value == nullptr) return;
    out.clear();
    reading_.attempt(value, path_of(key), [&] {
      if (value->kind != Value::Kind::list && !is_null(place(key, *value)))
        wrong(place(key, *value), "a list");
    });
    for (std::size_t i = 0; i < value->items.size(); ++i)
      Reader(reading_, *value, path_of(key), "").item(i, out.emplace_back(), fn);
  }

  /// Handles the keys that no field took: keys without effect, and unknown keys, which are problems.
  void finish();

 private:
  template <class Fn>
  void subsection(const std::string& key, const std::string& kind, Fn&& fn) {
    const Value* value = take(key);
    const Value* map = nullptr;
    if (value == nullptr) return;
    reading_.attempt(value, path_of(key), [&] { map = as_section(place(key, *value)); });
    if (map == nullptr) return;
    Reader sub(reading_, *map, path_of(key), kind);
    fn(sub);
    sub.finish();
  }
  template <class S, class Fn>
  void item(std::size_t i, S& out, Fn&& fn) {
    const std::string key = std::to_string(i);
    reading_.attempt(&map_.items[i], path_of(key), [&] {
      const Value* map = as_section(place(key, map_.items[i]));
      if (map == nullptr) wrong(place(key, map_.items[i]), "a section of keys");
      Reader sub(reading_, *map, path_of(key), "");
      fn(sub, out);
      sub.finish();
    });
  }
  /// Whether the key is present and valid. Null on the command line takes a key out of the recipe.
  template <class T>
  bool read_key(const char* key, T& out, Range range) {
    const Value* value = take(key);
    if (value == nullptr) return false;
    bool there = false;
    const bool right = reading_.attempt(value, path_of(key), [&] {
      const Place at = place(key, *value);
      const bool removed = !takes_null<T> && (range.null_is_default || value->line == 0) && is_null(at);
      if (removed) return;
      read(at, out, range);
      there = true;
    });
    return there && right;
  }

  std::string path_of(std::string_view key) const;
  std::string kind_of(std::string_view key) const;
  std::string where(const std::string& key) const { return reading_.where(map_.find(key), path_of(key)); }
  Place place(const std::string& key, const Value& value) const {
    return {value, path_of(key), reading_.where(&value, path_of(key))};
  }
  /// Records the key as known. Returns its value, or null when the key is absent or belongs to another class.
  const Value* take(const std::string& key);
  std::vector<std::string> keys_with(std::string_view prefix) const;
  std::string suffix_name(const std::string& key, std::string_view prefix) const;

  void other_key(const std::string& key, const Value& value);
  void inert_key(const std::string& key, const Value& value, const InertKeys& row);
  void key_of_other_class(const std::string& key, const Value& value, const std::string& classes);
  [[noreturn]] void unknown_key(const std::string& key, const Value& value);

  Reading& reading_;
  const Value& map_;
  std::string path_, kind_;
  std::string class_;         ///< name of the class, empty when there is none or it is wrong
  std::string classes_;       ///< that the next fields belong to
  std::string wanted_class_;  ///< what the missing _target_ should be
  std::vector<std::string> known_;
  std::map<std::string, std::string> of_other_class_;  ///< key to its classes
};

}  // namespace nemocube::recipe
