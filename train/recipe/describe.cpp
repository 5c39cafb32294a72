#include "core/error.h"
#include "train/recipe/fields.h"
#include "train/recipe/words.h"

namespace nemocube {
namespace recipe {
namespace {

/// Writes the keys that a recipe holds as YAML: the visitor of fields.h that writes.
class Writer {
 public:
  explicit Writer(std::string indent) : indent_(std::move(indent)) {}
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
    const std::string text = text_of(value);
    if (is_for_class(classes_, class_) && !text.empty()) yaml += cat(indent_, key, ": ", text, "\n");
  }
  template <class T>
  void alias(const char*, const T&, const std::string&, Range = any) {}
  void path_or_section(const char* key, const std::optional<std::string>& value, const char*) {
    if (value) field(key, *value, "");
  }
  template <class S>
  void section(const std::string& key, const S& contents, const char* = nullptr) {
    if (!is_for_class(classes_, class_)) return;
    Writer sub(indent_ + "  ");
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
      Writer sub(indent_ + "    ");
      fields(sub, item);
      yaml += cat(indent_, "  -\n", sub.yaml);
    }
  }

 private:
  std::string indent_;
  std::string class_;    ///< the section's own
  std::string classes_;  ///< that the next fields belong to
};

}  // namespace
}  // namespace recipe

std::string describe(const Recipe& recipe) {
  recipe::Writer writer("");
  recipe::fields(writer, recipe);
  return writer.yaml;
}

}  // namespace nemocube
