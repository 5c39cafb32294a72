#pragma once
#include <array>
#include <cmath>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "train/recipe/names.h"
#include "train/recipe/reader.h"

/// The other visitors of fields.h: Writer prints the structs as YAML, KeyList names all keys there are.
namespace nemocube::recipe {

std::string yaml_text(std::string_view text);  ///< in double quotes, with `$` escaped
std::string yaml_number(double value);         ///< shortest that reads back equal, always with a point

class Writer {
 public:
  explicit Writer(std::string& out, int depth = 0) : out_(out), depth_(depth) {}

  bool has(const char*) const { return true; }
  const char* either(const char* key, const char*) const { return key; }
  template <class T>
  void field(const char* key, const T& value, Range = any) {
    line(key, text_of(value));
  }
  template <class T>
  void hidden(const char*, const T&, Range = any) {}
  template <class Fn>
  void section(const char* key, Fn&& fn) {
    std::string body;
    Writer sub(body, depth_ + 1);
    fn(sub);
    if (!body.empty()) out_ += cat(indent(), key, ":\n", body);
  }
  template <class S, class Fn>
  void optional_section(const char* key, std::optional<S>& value, Fn&& fn) {
    if (value) section(key, [&](Writer& sub) { fn(sub, *value); });
  }
  template <class S, class Fn>
  void suffixed_sections(const char* prefix, std::map<std::string, S>& sections, Fn&& fn) {
    for (auto& [name, value] : sections) {
      const std::string key = name == "default" ? prefix : cat(prefix, "_", name);
      section(key.c_str(), [&](Writer& sub) { fn(sub, value); });
    }
  }
  template <class S, class Fn>
  void list(const char* key, std::vector<S>& items, Fn&& fn) {
    if (items.empty()) return;
    out_ += cat(indent(), key, ":\n");
    for (S& item : items) {
      out_ += cat(indent(), "  -\n");
      Writer sub(out_, depth_ + 2);
      fn(sub, item);
    }
  }
  void word_map(const char* key, const std::map<std::string, std::string, std::less<>>& words) {
    section(key, [&](Writer& sub) {
      for (const auto& [name, word] : words) sub.field(name.c_str(), word);
    });
  }
  void path_or_section(const char* key, const std::optional<std::string>& value) {
    if (value) field(key, *value);
  }
  void signals(const char* key, const std::vector<int>& numbers) {
    std::string text;
    for (const int number : numbers) text += cat(text.empty() ? "" : ", ", number);
    line(key, numbers.empty() ? "null" : cat("[", text, "]"));
  }
  void ignored(std::initializer_list<const char*>) const {}
  void ignored_section(const char*) const {}
  void known_class(const char*, std::initializer_list<const char*>) const {}
  void only(const char*, std::initializer_list<const char*>, const char*) const {}
  void refuse(const char* key, const std::string& why) const { fail(key, ": ", why); }

 private:
  static std::string text_of(bool value) { return value ? "true" : "false"; }
  static std::string text_of(std::int64_t value) { return std::to_string(value); }
  static std::string text_of(double value) { return yaml_number(value); }
  static std::string text_of(const std::string& value) { return yaml_text(value); }
  static std::string text_of(const std::optional<DType>& value) {
    return value ? std::string(name_of(*value)) : "auto";
  }
  static std::string text_of(const std::array<double, 2>& value) {
    return cat("[", yaml_number(value[0]), ", ", yaml_number(value[1]), "]");
  }
  template <class T>
  static std::string text_of(const std::optional<T>& value) {
    return value ? text_of(*value) : "null";
  }
  template <class E>
  requires std::is_enum_v<E>
  static std::string text_of(E value) { return name_of_choice(value); }
  std::string indent() const { return std::string(static_cast<std::size_t>(2 * depth_), ' '); }
  void line(const char* key, const std::string& text) { out_ += cat(indent(), key, ": ", text, "\n"); }

  std::string& out_;
  int depth_;
};

class KeyList {
 public:
  explicit KeyList(std::vector<std::string>& paths, std::string prefix = "")
      : paths_(paths), prefix_(std::move(prefix)) {}

  bool has(const char*) const { return true; }
  const char* either(const char* key, const char* other) {
    add(other);
    return key;
  }
  template <class T>
  void field(const char* key, const T&, Range = any) {
    add(key);
  }
  template <class T>
  void hidden(const char* key, const T&, Range = any) {
    add(key);
  }
  template <class Fn>
  void section(const char* key, Fn&& fn) {
    add(key);
    KeyList sub(paths_, cat(prefix_, key, "."));
    fn(sub);
  }
  template <class S, class Fn>
  void optional_section(const char* key, std::optional<S>&, Fn&& fn) {
    section(key, [&](KeyList& sub) {
      S value;
      fn(sub, value);
    });
  }
  template <class S, class Fn>
  void suffixed_sections(const char* prefix, std::map<std::string, S>&, Fn&&) {
    add(prefix);
  }
  template <class S, class Fn>
  void list(const char* key, std::vector<S>&, Fn&&) {
    add(key);
  }
  template <class T>
  void word_map(const char* key, const T&) {
    add(key);
  }
  template <class T>
  void path_or_section(const char* key, const T&) {
    add(key);
  }
  template <class T>
  void signals(const char* key, const T&) {
    add(key);
  }
  void ignored(std::initializer_list<const char*> keys) {
    for (const char* key : keys) add(key);
  }
  void ignored_section(const char* key) { add(key); }
  void known_class(const char* key, std::initializer_list<const char*>) { add(key); }
  void only(const char* key, std::initializer_list<const char*>, const char*) { add(key); }
  void refuse(const char*, const std::string&) const {}

 private:
  void add(const char* key) { paths_.push_back(prefix_ + key); }
  std::vector<std::string>& paths_;
  std::string prefix_;
};

}  // namespace nemocube::recipe
