#include "train/recipe/key_list.h"

#include <algorithm>

#include "core/error.h"
#include "train/recipe/fields.h"
#include "train/recipe/inert_keys.h"

namespace nemocube::recipe {
namespace {

struct Row {
  int depth = 0;  ///< of the sections around it
  std::string path{}, key{};
  std::string type{};  ///< empty for a section
  std::string value{}, meaning{}, effect{};
};

/// Lists the keys that a recipe holds or, with `all`, every key that recipes can have.
class KeyList {
 public:
  KeyList(std::vector<Row>& rows, bool all, std::string prefix = "", int depth = 0)
      : rows_(rows), all_(all), prefix_(std::move(prefix)), depth_(depth) {}

  template <class E>
  void target(const E& value, const char* meaning, bool required = false) {
    class_ = all_ ? "" : name_of_choice(value);
    add("_target_", wish_for(&value, any), all_ && required ? "required" : text_of(value), meaning);
  }
  void classes(std::string_view names) { classes_ = names; }
  template <class T>
  void field(const char* key, const T& value, const char* meaning, Range range = any) {
    if (is_for_class(classes_, class_)) add(key, wish_for(&value, range), text_of(value), meaning);
  }
  template <class T>
  void field(const char* key, const MaybeAbsent<T>& value, const char* meaning, Range range = any) {
    if (all_) return add(key, wish_for(&value, range), "", meaning);
    if (value) field(key, *value, meaning, range);
  }
  template <class T>
  void alias(const char* key, const T& value, const std::string& path, Range range = any) {
    if (all_) add(key, wish_for(&value, range), "", cat("the same as `", path, "`"));
  }
  void path_or_section(const char* key, const std::optional<std::string>& value, const char* meaning) {
    if (all_) return add(key, "a path, or a section with pretrained_model_name_or_path", "null", meaning);
    if (value) field(key, *value, meaning);
  }
  template <class Fn>
  void section(const std::string& key, Fn&& fn, const char* kind = nullptr) {
    if (all_ && kind != nullptr) return add(key, "a section", "", cat("the keys of `", kind, "`"));
    const std::size_t before = rows_.size();
    rows_.push_back({.depth = depth_, .path = prefix_ + key, .key = key});
    KeyList sub(rows_, all_, cat(prefix_, key, "."), depth_ + 1);
    fn(sub);
    if (all_) sub.inert_rows();
    if (rows_.size() == before + 1) rows_.pop_back();
  }
  template <class S, class Fn>
  void optional_section(const char* key, const std::optional<S>& value, Fn&& fn) {
    const S initial;
    if (value || all_) section(key, [&](KeyList& sub) { fn(sub, value ? *value : initial); });
  }
  template <class S, class Fn>
  void sections(const std::string& prefix, const std::map<std::string, S>& sections, Fn&& fn,
                const char* kind) {
    if (all_) add(prefix, "a section", "", cat("the keys of `", kind, "`; more sets are ", prefix, "_NAME"));
    for (const auto& [name, value] : sections)
      section(name == "default" ? prefix : cat(prefix, "_", name), [&](KeyList& sub) { fn(sub, value); });
  }
  template <class S, class Fn>
  void list(const char* key, const std::vector<S>& items, const char* meaning, Fn&& fn) {
    if (all_) add(key, "a list of sections", "[]", meaning);
    const std::vector<S> one(1);
    if (items.empty() && !all_) return;
    if (!all_) rows_.push_back({.depth = depth_, .path = prefix_ + key, .key = key});
    for (const S& item : all_ ? one : items) {
      if (!all_) rows_.push_back({.depth = depth_ + 1, .path = prefix_ + key, .key = "-"});
      KeyList sub(rows_, all_, cat(prefix_, key, ".N."), depth_ + 2);
      fn(sub, item);
    }
  }

  /// The keys without effect of this section; of the recipe itself, also those of sections not listed yet.
  void inert_rows() {
    const std::vector<Row> before = rows_;
    for (const InertKeys& row : inert_keys()) {
      const std::string section = row.section.empty() ? "" : cat(row.section, ".");
      const bool listed =
          std::ranges::any_of(before, [&](const Row& r) { return r.path.starts_with(section); });
      if (section == "tokenizer." || !section.starts_with(prefix_)) continue;
      if (prefix_.empty() && !section.empty() && listed) continue;
      classes_ = row.classes;
      for (const std::string& key : words_of(row.keys)) {
        add(section.substr(prefix_.size()) + key, type_of(row), "", std::string(row.meaning));
        rows_.back().effect = &row.form == &only ? "not in this build" : "none";
      }
    }
  }

 private:
  void add(const std::string& key, std::string type, std::string value, std::string meaning) {
    if (!classes_.empty()) meaning += cat(" (", classes_, ")");
    rows_.push_back(
        {depth_, prefix_ + key, key, std::move(type), std::move(value), std::move(meaning), "yes"});
  }

  std::vector<Row>& rows_;
  bool all_;
  std::string prefix_;
  int depth_;
  std::string class_;    ///< the section's own, empty with `all`
  std::string classes_;  ///< that the next fields belong to
};

const std::vector<Row>& all_rows() {
  static const std::vector<Row> rows = [] {
    std::vector<Row> found;
    KeyList list(found, true);
    const Recipe initial;
    fields(list, initial);
    list.inert_rows();
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
    if (!row.type.empty())
      out += cat("| `", row.path, "` | ", cell(row.type), " | ", cell(row.value, "`"), " | ",
                 cell(row.meaning), " | ", row.effect, " |\n");
  return out;
}

}  // namespace nemocube::recipe

namespace nemocube {

std::string describe(const Recipe& recipe) {
  std::vector<recipe::Row> rows;
  recipe::KeyList list(rows, false);
  recipe::fields(list, recipe);
  std::string out;
  for (const recipe::Row& row : rows) {
    out += std::string(2 * static_cast<std::size_t>(row.depth), ' ') + row.key;
    out += row.key == "-" ? "\n" : row.type.empty() ? ":\n" : cat(": ", row.value, "\n");
  }
  return out;
}

}  // namespace nemocube
