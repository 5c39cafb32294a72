#include "train/recipe/key_list.h"

#include <algorithm>

#include "core/error.h"
#include "train/recipe/fields.h"
#include "train/recipe/inert_keys.h"

namespace nemocube::recipe {
namespace {

std::string type_of(const InertKeys& row) {
  std::string values;
  for (const std::string& word : words_of(row.values)) values += cat(values.empty() ? "" : ", ", word);
  switch (row.accepts) {
    case Accepts::anything:
      return "anything";
    case Accepts::flag:
      return wish_for(static_cast<const bool*>(nullptr), any);
    case Accepts::whole:
      return wish_for(static_cast<const std::int64_t*>(nullptr), nonnegative);
    case Accepts::count:
      return wish_for(static_cast<const std::int64_t*>(nullptr), positive);
    case Accepts::number:
      return wish_for(static_cast<const double*>(nullptr), nonnegative);
    case Accepts::above_zero:
      return wish_for(static_cast<const double*>(nullptr), positive);
    case Accepts::section:
      return "a section";
    case Accepts::choice:
    case Accepts::class_name:
      return "one of " + values;
    case Accepts::only:
      return values.empty() ? "null" : values + " or null";
  }
  return "";
}

/// A visitor of fields.h that notes each key with the value that the structs begin with.
class KeyList {
 public:
  KeyList(std::vector<KeyRow>& rows, std::string prefix) : rows_(rows), prefix_(std::move(prefix)) {}

  template <class E>
  void target(const E& value, const char* meaning, bool required = false) {
    add("_target_", wish_for(&value, any), required ? "required" : text_of(value), meaning);
  }
  void classes(std::string_view names) { classes_ = names; }
  template <class T>
  void field(const char* key, const T& value, const char* meaning, Range range = any) {
    add(key, wish_for(&value, range), text_of(value), meaning);
  }
  template <class T>
  void field(const char* key, const MaybeAbsent<T>& value, const char* meaning, Range range = any) {
    add(key, wish_for(&value, range), "absent", meaning);
  }
  template <class T>
  void alias(const char* key, const T& value, const std::string& path, Range range = any) {
    add(key, wish_for(&value, range), "absent", cat("the same as `", path, "`"));
  }
  void path_or_section(const char* key, const std::optional<std::string>&, const char* meaning) {
    add(key, "a path, or a section with it as pretrained_model_name_or_path", "null", meaning);
  }
  template <class Fn>
  void section(const char* key, Fn&& fn, const char* kind = nullptr) {
    if (kind != nullptr) return add(key, "a section", "absent", cat("keys of `", kind, "`"));
    KeyList sub(rows_, cat(prefix_, key, "."));
    fn(sub);
    sub.finish();
  }
  template <class S, class Fn>
  void optional_section(const char* key, const std::optional<S>&, Fn&& fn) {
    section(key, [&](KeyList& sub) {
      S value;
      fn(sub, value);
    });
  }
  template <class S, class Fn>
  void sections(const char* prefix, const std::map<std::string, S>&, Fn&&, const char* kind) {
    add(prefix, "a section", "absent", cat("keys of `", kind, "`; more sets are `", prefix, "_NAME`"));
  }
  template <class S, class Fn>
  void list(const char* key, const std::vector<S>&, const char* meaning, Fn&& fn) {
    add(key, "a list of sections", "[]", meaning);
    S item;
    KeyList sub(rows_, cat(prefix_, key, ".N."));
    fn(sub, item);
  }

  /// The keys without effect of this section; of the recipe itself, also those of sections not seen yet.
  void finish() {
    const std::size_t before = rows_.size();
    const auto seen = [&](const std::string& section) {
      return std::any_of(rows_.begin(), rows_.begin() + static_cast<std::ptrdiff_t>(before),
                         [&](const KeyRow& row) { return row.path.starts_with(section); });
    };
    for (const InertKeys& row : inert_keys()) {
      const std::string section = row.section.empty() ? "" : cat(row.section, ".");
      const bool mine = prefix_.empty() ? section.empty() || !seen(section) : section.starts_with(prefix_);
      if (!mine || section == "tokenizer.") continue;
      classes_ = row.classes;
      for (const std::string& key : words_of(row.keys)) add_inert(section + key, row);
    }
  }

 private:
  void add(const std::string& key, std::string type, std::string initial, std::string meaning) {
    if (!classes_.empty()) meaning = cat(meaning, " (", classes_, ")");
    rows_.push_back({prefix_ + key, std::move(type), std::move(initial), std::move(meaning), "yes"});
  }
  void add_inert(const std::string& path, const InertKeys& row) {
    std::string meaning(row.meaning);
    if (!classes_.empty()) meaning += cat(" (", classes_, ")");
    rows_.push_back(
        {path, type_of(row), "absent", meaning, row.accepts == Accepts::only ? "not built" : "no"});
  }

  std::vector<KeyRow>& rows_;
  std::string prefix_, classes_;
};

std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '|' ? "\\|" : std::string(1, c);
  return out;
}

}  // namespace

const std::vector<KeyRow>& key_rows() {
  static const std::vector<KeyRow> rows = [] {
    std::vector<KeyRow> found;
    KeyList list(found, "");
    const Recipe initial;
    fields(list, initial);
    list.finish();
    return found;
  }();
  return rows;
}

const std::vector<std::string>& known_paths() {
  static const std::vector<std::string> paths = [] {
    std::vector<std::string> found;
    for (const KeyRow& row : key_rows()) {
      // A section comes before its keys: "optimizer" before "optimizer.lr".
      for (std::size_t dot = row.path.find('.'); dot != std::string::npos; dot = row.path.find('.', dot + 1))
        if (const std::string section = row.path.substr(0, dot); std::ranges::count(found, section) == 0)
          found.push_back(section);
      found.push_back(row.path);
    }
    return found;
  }();
  return paths;
}

std::string key_table() {
  std::string out = "| key | type | default | meaning | effect |\n|---|---|---|---|---|\n";
  for (const KeyRow& row : key_rows())
    out += cat("| `", row.path, "` | ", cell(row.type), " | ",
               row.initial == "absent" ? "" : cat("`", cell(row.initial), "`"), " | ", cell(row.meaning),
               " | ", row.effect, " |\n");
  return out;
}

}  // namespace nemocube::recipe
