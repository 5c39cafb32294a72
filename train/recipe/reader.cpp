#include "train/recipe/reader.h"

#include <algorithm>

#include "core/error.h"
#include "train/recipe/key_list.h"
#include "train/recipe/nearest.h"

namespace nemocube::recipe {
std::string Reader::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : cat(path_, ".", key);
}

std::string Reader::kind_of(std::string_view key) const {
  return kind_.empty() ? std::string(key) : cat(kind_, ".", key);
}

const Value* Reader::take(const std::string& key) {
  if (!is_for_class(classes_, class_)) {
    of_other_class_[key] = classes_;
    return nullptr;
  }
  if (std::ranges::count(known_, key) == 0) known_.push_back(key);
  return map_.find(key);
}

std::vector<std::string> Reader::keys_with(std::string_view prefix) const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : map_.entries)
    if (key.starts_with(prefix)) keys.push_back(key);
  return keys;
}

std::string Reader::suffix_name(const std::string& key, std::string_view prefix) const {
  std::string name = key.substr(prefix.size());
  if (name.size() > 1 && (name[0] == '_' || name[0] == '-' || name[0] == '.')) name.erase(0, 1);
  if (name.empty()) return "default";
  const bool fine = std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
  require(fine, where(key), ": the part after '", prefix,
          "' becomes a file name: letters, digits, '_', '-' and '.' only");
  return name;
}

void Reader::finish() {
  for (const auto& [key, value] : map_.entries) {
    if (std::ranges::count(known_, key) > 0) continue;
    if (reading_.many_problems()) return;
    reading_.attempt(&value, path_of(key), [&] { other_key(key, value); });
  }
  reading_.rule(wanted_class_.empty(), {path_of("_target_")}, "is missing: want ", wanted_class_);
}

void Reader::other_key(const std::string& key, const Value& value) {
  std::string classes;
  for (const InertKeys* row : find_inert(kind_, key)) {
    if (is_for_class(row->classes, class_)) return inert_key(key, value, *row);
    classes = row->classes;
  }
  if (is_inert_section(kind_of(key))) return section(key.c_str(), [](Reader&) {});
  if (const auto other = of_other_class_.find(key); other != of_other_class_.end()) classes = other->second;
  if (classes.empty()) unknown_key(key, value);
  key_of_other_class(key, value, classes);
}

void Reader::inert_key(const std::string& key, const Value& value, const InertKeys& row) {
  // An unset variable in an unused value is not an error.
  const bool read_by_nobody = &row.form == &anything && value.kind == Value::Kind::scalar;
  const Place at = place(key, value);
  if (read_by_nobody ? value.text == "none" || value.text == "None" : is_null(at)) return;
  row.form.check(at, row);
  if (row.form.reported) reading_.no_effect.push_back(path_of(key));
}

void Reader::key_of_other_class(const std::string& key, const Value& value, const std::string& classes) {
  if (value.line == 0 && is_null(place(key, value))) return;
  // A class changed on the command line does not require removing the keys of the class in the file.
  const Value* target = map_.find("_target_");
  if (target != nullptr && target->line == 0 && value.line > 0) {
    reading_.no_effect.push_back(path_of(key));
    return;
  }
  fail(where(key), ": key '", key, "' belongs to ", joined(words_of(classes)), "; ", path_of("_target_"),
       " is ", class_, target == nullptr ? ", which is the default" : "");
}

void Reader::unknown_key(const std::string& key, const Value& value) {
  const std::string trouble = cat(reading_.where(&value, path_of(key)), ": unknown key '", key, "'; ");
  std::vector<std::string> known = known_;
  for (const InertKeys& row : inert_keys())
    if (row.section == kind_ && is_for_class(row.classes, class_))
      std::ranges::move(words_of(row.keys), std::back_inserter(known));
  const auto suggest = [&](const std::string& name, const std::string& path) {
    reading_.mark_faulty(path);
    fail(trouble, "the nearest known key is '", name, "'");
  };
  const std::string guess = nearest(key, known);
  if (!guess.empty() && edit_distance(key, guess) <= (key.size() + 2) / 3) suggest(guess, path_of(guess));
  // A key in the wrong section is further from its neighbours than from its own name elsewhere.
  for (const std::string& path : known_paths())
    if ((path.ends_with(cat(".", key)) || path == key) && path != path_of(key)) suggest(path, path);
  fail(trouble, "known here: ", joined(known));
}

}  // namespace nemocube::recipe
