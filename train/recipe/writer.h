#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "train/recipe/inert_keys.h"
#include "train/recipe/types.h"

/// Writes the structs of a recipe as YAML: a visitor of fields.h.
namespace nemocube::recipe {

class Writer {
 public:
  explicit Writer(std::string& out, int depth = 0)
      : out_(out), indent_(2 * static_cast<std::size_t>(depth), ' ') {}

  template <class E>
  void target(const E& value, const char*, bool = false) {
    class_ = name_of_choice(value);
    field("_target_", value, "");
  }
  void classes(std::string_view names) { written_ = is_for_class(names, class_); }
  template <class T>
  void field(const char* key, const T& value, const char*, Range = any) {
    if (written_) out_ += cat(indent_, key, ": ", text_of(value), "\n");
  }
  template <class T>
  void field(const char* key, const MaybeAbsent<T>& value, const char* meaning, Range = any) {
    if (value) field(key, *value, meaning);
  }
  template <class T>
  void alias(const char*, const T&, const std::string&, Range = any) {}
  void path_or_section(const char* key, const std::optional<std::string>& value, const char* meaning) {
    if (value) field(key, *value, meaning);
  }
  template <class Fn>
  void section(const char* key, Fn&& fn, const char* = nullptr) {
    std::string body;
    Writer sub(body, depth() + 1);
    fn(sub);
    if (!body.empty()) out_ += cat(indent_, key, ":\n", body);
  }
  template <class S, class Fn>
  void optional_section(const char* key, const std::optional<S>& value, Fn&& fn) {
    if (value) section(key, [&](Writer& sub) { fn(sub, *value); });
  }
  template <class S, class Fn>
  void sections(const char* prefix, const std::map<std::string, S>& sections, Fn&& fn, const char*) {
    for (const auto& [name, value] : sections) {
      const std::string key = name == "default" ? prefix : cat(prefix, "_", name);
      section(key.c_str(), [&](Writer& sub) { fn(sub, value); });
    }
  }
  template <class S, class Fn>
  void list(const char* key, const std::vector<S>& items, const char*, Fn&& fn) {
    if (!items.empty()) out_ += cat(indent_, key, ":\n");
    for (const S& item : items) {
      out_ += cat(indent_, "  -\n");
      Writer sub(out_, depth() + 2);
      fn(sub, item);
    }
  }

 private:
  int depth() const { return static_cast<int>(indent_.size() / 2); }

  std::string& out_;
  std::string indent_, class_;
  bool written_ = true;
};

}  // namespace nemocube::recipe
