#include <algorithm>
#include <cctype>
#include <cstdio>
#include <functional>
#include <ranges>
#include <span>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/quote.h"
#include "data/files/crc32c.h"
#include "train/recipe/fields.h"
#include "train/recipe/variables.h"
#include "train/recipe/words.h"

namespace nemocube {
namespace recipe {
namespace {

/// Writes the keys that a recipe holds as YAML: the visitor of fields.h that writes.
class Writer {
 public:
  using Interpolated = std::map<std::string, std::string>;
  /// `interpolated`: Recipe::interpolated, to write this text as it was written; or null.
  Writer(std::string indent, const Interpolated* interpolated)
      : indent_(std::move(indent)), interpolated_(interpolated) {}
  std::string yaml;

  template <class E>
  void target(const E& value, const char*, bool = false) {
    class_ = name_of_choice(value);
    field("_target_", value, "");
  }
  template <class Class, class E>
  void named_target(const char* key, const E& value, const char*) {
    class_ = name_of_choice(value);
    field(key, value, "");
  }
  void classes(std::string_view names) { classes_ = names; }
  template <class T>
  void field(const char* key, const T& value, const char*, Range = any) {
    std::string text = text_of(value);
    if (interpolated_) write_variables(text);
    if (is_for_class(classes_, class_) && !text.empty()) yaml += cat(indent_, key, ": ", text, "\n");
  }
  template <class T>
  void alias(const char*, const T&, const std::string&, Range = any) {}
  void path_or_section(const char* key, const std::optional<std::string>& value, const char*) {
    if (value) field(key, *value, "");
  }
  template <class T>
  void value_or_section(const char* key, const char*, const T& value, const char*, Range) {
    field(key, value, "");
  }
  template <class S>
  void section(const std::string& key, const S& contents, const char* = nullptr) {
    if (!is_for_class(classes_, class_)) return;
    Writer sub(indent_ + "  ", interpolated_);
    visit(sub, contents);
    if (!sub.yaml.empty()) yaml += cat(indent_, key, ":\n", sub.yaml);
  }
  template <class S>
  void section(const std::string& key, const std::optional<S>& contents) {
    if (contents) section(key, *contents);
  }
  template <class S>
  void alias_section(const char*, const S&, const std::string&) {}
  template <class S>
  void sections(const std::string& prefix, const std::map<std::string, S>& sections, const char*) {
    for (const auto& [name, contents] : sections)
      section(name == "default" ? prefix : cat(prefix, "_", name), contents);
  }
  template <class S>
  void list(const char* key, const std::vector<S>& items, const char*) {
    if (!items.empty()) yaml += cat(indent_, key, ":\n");
    for (const S& item : items) {
      Writer sub(indent_ + "    ", interpolated_);
      fields(sub, item);
      yaml += cat(indent_, "  -\n", sub.yaml);
    }
  }

 private:
  /// Replaces text that came out of variables, and such text at the beginning of a path, by the text as
  /// written: a run's directory gives way to the model in it. Longer texts come first, because they may begin
  /// with others.
  void write_variables(std::string& yaml_of_value) const {
    for (const auto& [text, written] : *interpolated_ | std::views::reverse)
      replace(yaml_of_value, text, written);
    for (std::pair<std::string, std::string> entry : *interpolated_ | std::views::reverse) {
      auto& [text, written] = entry;
      for (;;) {  // without equal names at the ends of both
        const auto a = text.rfind('/'), b = written.rfind('/');
        if (a == text.npos || b == written.npos || escape_variables(text.substr(a)) != written.substr(b))
          break;
        text.resize(a);
        written.resize(b);
        replace(yaml_of_value, text, written);
      }
    }
  }
  static void replace(std::string& yaml_of_value, const std::string& text, const std::string& written) {
    if (text.empty()) return;
    std::string before = key_in_quotes(escape_variables(text)), now = key_in_quotes(written);
    before.pop_back();
    now.pop_back();
    for (auto at = yaml_of_value.find(before); at != yaml_of_value.npos;
         at = yaml_of_value.find(before, at + 1)) {
      const char next = yaml_of_value[at + before.size()];  // there is a quote at least
      const bool begins = at == 0 || yaml_of_value[at - 1] != '\\';
      if (begins && (next == '"' || next == '/')) yaml_of_value.replace(at, before.size(), now);
    }
  }
  std::string indent_;
  const Interpolated* interpolated_;
  std::string class_;    ///< the section's own
  std::string classes_;  ///< that the next fields belong to
};

}  // namespace
}  // namespace recipe

std::string describe(const Recipe& recipe) {
  recipe::Writer writer("", nullptr);
  recipe::fields(writer, recipe);
  return writer.yaml;
}

std::string describe_for_file(const Recipe& recipe) {
  recipe::Writer writer("", &recipe.interpolated);
  recipe::fields(writer, recipe);
  for (const auto& [text, written] : recipe.interpolated)
    writer.yaml += cat(interpolation_note(written), interpolation_digest(text), "\n");
  return writer.yaml;
}

std::string message_for_file(std::string message, const std::map<std::string, std::string>& interpolated) {
  constexpr std::size_t shortest = 4;
  const auto of_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  // Longer texts come first, because they may begin with others.
  std::vector<std::pair<std::string, std::string>> values(interpolated.begin(), interpolated.end());
  std::ranges::sort(values, std::greater(), [](const auto& value) { return value.first.size(); });
  for (const auto& [text, written] : values) {
    if (text.size() < shortest) continue;
    for (auto at = message.find(text); at != message.npos; at = message.find(text, at)) {
      const std::size_t end = at + text.size();
      const bool whole =
          (at == 0 || !of_word(message[at - 1])) && (end == message.size() || !of_word(message[end]));
      if (whole) message.replace(at, text.size(), written);
      at += whole ? written.size() : 1;
    }
  }
  return message;
}

std::string interpolation_note(const std::string& written) {
  return cat("# digest of the value of ", excerpt(written), ": ");
}

std::string interpolation_digest(const std::string& text) {
  char digest[8];
  std::snprintf(digest, sizeof digest, "%04x",
                static_cast<unsigned>(crc32c(std::as_bytes(std::span(text))) & 0xffffu));
  return digest;
}

}  // namespace nemocube
