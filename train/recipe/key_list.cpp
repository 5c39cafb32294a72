#include "train/recipe/key_list.h"

#include <algorithm>

#include "core/error.h"
#include "train/recipe/fields.h"
#include "train/recipe/inert_keys.h"
#include "train/recipe/words.h"

namespace nemocube::recipe {
namespace {

struct Row {
  std::string path, type, value, meaning, effect;
};

/// Lists every key that a section can have. The fields that it visits hold their defaults.
class KeyList {
 public:
  KeyList(std::vector<Row>& rows, std::string section) : rows_(rows), section_(std::move(section)) {}

  template <class E>
  void target(const E& value, const char* meaning, bool required = false) {
    const Shown shown = show(value, any);
    add("_target_", shown.wish, required ? "required" : shown.text, meaning);
  }
  template <class Class, class E>
  void named_target(const char* key, const E& value, const char* meaning) {
    field(key, value, meaning);
    add("_target_", show(static_cast<Class>(value), any).wish, "", cat("the class of `", path_of(key), "`"));
  }
  void classes(std::string_view names) { classes_ = names; }
  template <class T>
  void field(const char* key, const T& value, const char* meaning, Range range = any) {
    const Shown shown = show(value, range);
    add(key, shown.wish, shown.text, meaning);
  }
  template <class T>
  void alias(const char* key, const T& value, const std::string& path, Range range = any) {
    add(key, show(value, range).wish, "", cat("the same as `", path, "`"));
  }
  void path_or_section(const char* key, const std::optional<std::string>&, const char* meaning) {
    add(key, "a path, or a section with pretrained_model_name_or_path", "null", meaning);
  }
  template <class T>
  void value_or_section(const char* key, const char* inner, const T& value, const char* meaning,
                        Range range) {
    const Shown shown = show(value, range);
    add(key, cat(shown.wish, ", or a section with ", inner), shown.text, meaning);
  }
  template <class S>
  void section(const std::string& key, const S& contents, const char* kind = nullptr) {
    if (kind != nullptr) return add(key, "a section", "", cat("the keys of `", kind, "`"));
    KeyList sub(rows_, path_of(key));
    sub.classes_ = classes_;
    visit(sub, contents);
    sub.inert();
  }
  template <class S>
  void section(const std::string& key, const std::optional<S>&) {
    section(key, S{});
  }
  template <class S>
  void alias_section(const char* key, const S&, const std::string& path) {
    add(key, "a section", "", cat("another name of `", path, "`"));
  }
  template <class S>
  void sections(const std::string& prefix, const std::map<std::string, S>&, const char* kind) {
    add(prefix, "a section", "", cat("the keys of `", kind, "`; more sets are ", prefix, "_NAME"));
  }
  template <class S>
  void list(const std::string& key, const std::vector<S>&, const char* meaning) {
    add(key, "a list of sections", "[]", meaning);
    section(key + ".N", S{});
  }

  /// The keys without effect of this section.
  void inert() {
    for (const InertKeys& row : inert_keys()) {
      if (row.section != section_) continue;
      classes_ = row.classes;
      for (const std::string& key : words_of(row.keys))
        add(key, type_of(row), "", std::string(row.meaning), effect_of(row));
    }
  }

 private:
  std::string path_of(const std::string& key) const {
    return section_.empty() ? key : cat(section_, ".", key);
  }
  void add(const std::string& key, std::string type, std::string value, std::string meaning,
           const char* effect = "yes") {
    if (!classes_.empty()) meaning += cat(" (", classes_, ")");
    rows_.push_back({path_of(key), std::move(type), std::move(value), std::move(meaning), effect});
  }

  std::vector<Row>& rows_;
  std::string section_;
  std::string classes_;  ///< that the next fields belong to
};

const std::vector<Row>& all_rows() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> found;
    KeyList list(found, "");
    const Recipe defaults;
    fields(list, defaults);
    list.inert();
    return found;
  }();
  return rows;
}

std::string cell(const std::string& text, const char* mark = "") {
  std::string out;
  for (const char c : text) out += c == '|' ? "\\|" : std::string(1, c);
  return text.empty() ? "" : mark + out + mark;
}

}  // namespace

const std::vector<std::string>& known_paths() {
  static const std::vector<std::string> paths = [] {
    std::vector<std::string> found;
    const auto note = [&](const std::string& path) {
      if (std::ranges::count(found, path) == 0) found.push_back(path);
    };
    for (const Row& row : all_rows()) {
      if (const auto dot = row.path.rfind('.'); dot != std::string::npos) note(row.path.substr(0, dot));
      note(row.path);
    }
    return found;
  }();
  return paths;
}

std::string key_table() {
  std::string out = "| key | type | default | meaning | effect |\n|---|---|---|---|---|\n";
  for (const Row& row : all_rows())
    out += cat("| `", row.path, "` | ", cell(row.type), " | ", cell(row.value, "`"), " | ", cell(row.meaning),
               " | ", row.effect, " |\n");
  return out;
}

}  // namespace nemocube::recipe
