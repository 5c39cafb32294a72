#include "train/recipe/reader.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "train/recipe/key_list.h"
#include "train/recipe/variables.h"
#include "train/recipe/words.h"

namespace nemocube::recipe {

const Value* Reader::take(const std::string& key) {
  if (!is_for_class(classes_, class_)) {
    of_other_class_[key] = classes_;
    return nullptr;
  }
  if (std::ranges::count(known_, key) == 0) known_.push_back(key);
  if (classes_.empty()) known_of_every_class_.push_back(key);
  return map_.find(key);
}

void Reader::note_variables(const Place& at) {
  for (const Value& item : at.value.items) note_variables({item, at.path, at.where});
  for (const auto& [key, value] : at.value.entries) note_variables({value, at.path, at.where});
  if (at.value.kind != Value::Kind::scalar) return;
  const auto scalar = resolve_scalar(at.value, at.where);
  if (scalar && scalar->text != at.value.text) reading_.interpolated[scalar->text] = at.value.text;
}

void Reader::finish() {
  for (const InertKeys& row : inert_keys()) {
    if (row.section != kind_) continue;
    classes(row.classes);
    for (const std::string& key : words_of(row.keys))
      if (const Value* value = take(key)) {
        reading_.attempt(value, path_of(key), [&] {
          if (check_inert(place(key, *value), row)) reading_.no_effect.push_back(path_of(key));
        });
      }
  }
  for (const auto& [key, value] : map_.entries) {
    if (std::ranges::count(known_, key) > 0) continue;
    if (reading_.many_problems()) return;
    reading_.attempt(&value, path_of(key), [&, &key = key, &value = value] {
      const auto other = of_other_class_.find(key);
      if (other == of_other_class_.end()) unknown_key(key);
      key_of_other_class(key, value, other->second);
    });
  }
  reading_.rule(wanted_class_.empty(), {path_of("_target_")}, "is missing: want ", wanted_class_);
}

std::string Reader::suffix_name(const std::string& key, std::string_view prefix) const {
  std::string name = key.substr(prefix.size());
  const auto separates = [](char c) { return c == '_' || c == '-' || c == '.'; };
  if (name.size() > 1 && separates(name[0])) name.erase(0, 1);
  if (name.empty()) return "default";
  const bool fine = std::ranges::all_of(name, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || separates(c);
  });
  require(fine, where(key), ": the part after '", prefix,
          "' becomes a file name: letters, digits, '_', '-' and '.' only");
  return name;
}

void Reader::key_of_other_class(const std::string& key, const Value& value, const std::string& classes) {
  if (value.line == 0 && is_null(place(key, value))) return;
  // A class changed on the command line does not require removing the keys of the class in the file.
  const Value* target = map_.find(class_key_);
  if (target != nullptr && target->line == 0 && value.line > 0) {
    reading_.no_effect.push_back(path_of(key));
    return;
  }
  fail(where(key), ": key '", key, "' belongs to ", joined(words_of(classes)), "; ", path_of(class_key_),
       " is ", class_, target == nullptr ? ", which is the default" : "");
}

void Reader::unknown_key(const std::string& key) {
  const std::string trouble = cat(where(key), ": unknown key '", key, "'; ");
  const auto suggest = [&](const std::string& name, const std::string& path) {
    reading_.mark_faulty(path);
    fail(trouble, "the nearest known key is '", name, "'");
  };
  // Where the class is not known either, the key may be one of that class: a key of another class is no help.
  const bool class_unknown = has_classes_ && class_.empty();
  std::vector<std::string> names = class_unknown ? known_of_every_class_ : known_;
  std::erase_if(names, [&](const std::string& name) { return std::ranges::count(spare_, name) > 0; });
  // What transformers' TrainingArguments call it.
  constexpr std::array<std::pair<std::string_view, std::string_view>, 8> synonyms{
      {{"learning_rate", "lr"},
       {"num_train_epochs", "num_epochs"},
       {"per_device_train_batch_size", "local_batch_size"},
       {"max_grad_norm", "max_norm"},
       {"warmup_steps", "lr_warmup_steps"},
       {"save_steps", "ckpt_every_steps"},
       {"eval_steps", "val_every_steps"},
       {"adam_epsilon", "eps"}}};
  const auto synonym =
      std::ranges::find(synonyms, key, &std::pair<std::string_view, std::string_view>::first);
  if (synonym != synonyms.end()) {
    const std::string name(synonym->second);
    if (std::ranges::count(names, name) > 0) suggest(name, path_of(name));
    for (const std::string& path : known_paths())
      if (path.ends_with(cat(".", name))) suggest(path, path);
  }
  const std::string guess = nearest(key, names);
  if (!guess.empty() && edit_distance(key, guess) <= (key.size() + 2) / 3) suggest(guess, path_of(guess));
  // A key in the wrong section is further from its neighbours than from its own name elsewhere.
  for (const std::string& path : known_paths())
    if ((path.ends_with(cat(".", key)) || path == key) && path != path_of(key)) suggest(path, path);
  if (class_unknown) fail(trouble, "the keys of this section depend on ", path_of("_target_"));
  const std::string all = joined(known_), first = reading_.first_to_list(all, path_of(key));
  fail(trouble, "known here: ", first == path_of(key) ? all : cat("the keys listed for ", first));
}

}  // namespace nemocube::recipe
