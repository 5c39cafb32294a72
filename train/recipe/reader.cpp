#include "train/recipe/reader.h"

#include <algorithm>
#include <cmath>
#include <csignal>

#include "train/recipe/nearest.h"
#include "train/recipe/scalar.h"

namespace nemocube::recipe {
namespace {

std::string last_component(const std::string& path) {
  const auto dot = path.find_last_of(".:");
  return dot == std::string::npos ? path : path.substr(dot + 1);
}

std::string found(const Value& value) {
  switch (value.kind) {
    case Value::Kind::null:
      return "null";
    case Value::Kind::list:
      return "a list";
    case Value::Kind::map:
      return "a section";
    default:
      return cat("'", value.text, "'");
  }
}

constexpr std::array<std::pair<const char*, int>, 7> signal_names{{{"SIGTERM", SIGTERM},
                                                                   {"SIGINT", SIGINT},
                                                                   {"SIGHUP", SIGHUP},
                                                                   {"SIGQUIT", SIGQUIT},
                                                                   {"SIGUSR1", SIGUSR1},
                                                                   {"SIGUSR2", SIGUSR2},
                                                                   {"SIGALRM", SIGALRM}}};

template <class Words>
std::string joined(const Words& words) {
  std::string out;
  for (const auto& word : words) out += cat(out.empty() ? "" : ", ", word);
  return out;
}

}  // namespace

Reader::Reader(Reading& reading, const Value* map, std::string path)
    : reading_(reading), map_(map), path_(std::move(path)) {}

std::string Reader::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : cat(path_, ".", key);
}

std::string Reader::where(const Value* value, const std::string& path) const {
  if (value == nullptr) return cat(reading_.file, ": ", path);
  if (value->line == 0) return cat("--set ", path);
  return cat(reading_.file, ":", value->line, ": ", path);
}

const Value* Reader::take(const char* key) {
  if (std::find(taken_.begin(), taken_.end(), key) == taken_.end()) taken_.emplace_back(key);
  return map_ != nullptr ? map_->find(key) : nullptr;
}

bool Reader::has(const char* key) { return take(key) != nullptr; }

const char* Reader::either(const char* key, const char* other) {
  const bool both = has(key) && has(other);
  if (both) refuse(other, cat("means the same as ", key, ", which is also given"));
  return has(other) ? other : key;
}

std::vector<std::string> Reader::keys_with(std::string_view prefix) const {
  std::vector<std::string> keys;
  if (map_ == nullptr) return keys;
  for (const auto& [key, value] : map_->entries)
    if (key.starts_with(prefix)) keys.push_back(key);
  return keys;
}

std::string Reader::suffix_name(const std::string& key, std::string_view prefix) const {
  std::string name = key.substr(prefix.size());
  if (name.size() > 1 && (name[0] == '_' || name[0] == '-' || name[0] == '.')) name.erase(0, 1);
  if (name.empty()) return "default";
  const bool fine = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
  require(fine, where(map_->find(key), path_of(key)), ": the part after '", prefix,
          "' becomes a file name: letters, digits, '_', '-' and '.' only");
  return name;
}

void Reader::wrong(const Value& value, const std::string& path, const std::string& wish) const {
  fail(where(&value, path), ": want ", wish, ", found ", found(value));
}

void Reader::refuse(const char* key, const std::string& why) const {
  const Value* value = map_ != nullptr ? map_->find(key) : nullptr;
  if (map_ != nullptr && value == nullptr)
    for (const auto& [name, misspelt] : map_->entries)
      if (edit_distance(name, key) <= 2) unknown_key(misspelt, name, key);
  fail(where(value, path_of(key)), ": ", why);
}

const Value* Reader::as_section(const Value& value, const std::string& path) const {
  if (value.kind == Value::Kind::map) return &value;
  if (value.kind == Value::Kind::list ||
      (value.kind == Value::Kind::scalar && resolve_scalar(value, where(&value, path))))
    wrong(value, path, "a section of keys");
  return nullptr;
}

std::vector<const Value*> Reader::as_list(const Value& value, const std::string& path) const {
  std::vector<const Value*> items;
  if (value.kind == Value::Kind::list) {
    for (const Value& item : value.items) items.push_back(&item);
  } else if (value.kind == Value::Kind::map || scalar_of(value, path, "a list")) {
    wrong(value, path, "a list");
  }
  return items;
}

std::optional<Scalar> Reader::scalar_of(const Value& value, const std::string& path,
                                        const std::string& wish) const {
  if (value.kind == Value::Kind::list || value.kind == Value::Kind::map) wrong(value, path, wish);
  return resolve_scalar(value, where(&value, path));
}

void Reader::read(const Value& value, const std::string& path, bool& out, Range) const {
  const auto scalar = scalar_of(value, path, "true or false");
  const auto flag = scalar ? parse_flag(scalar->text) : std::nullopt;
  if (!flag) wrong(value, path, "true or false");
  out = *flag;
}

void Reader::read(const Value& value, const std::string& path, std::int64_t& out, Range range) const {
  const std::string wish = cat("a ", range.words, "integer");
  const auto scalar = scalar_of(value, path, wish);
  const auto number = scalar ? parse_integer(scalar->text) : std::nullopt;
  const auto real = static_cast<double>(number.value_or(0));
  if (!number || real < range.low || real > range.high || (range.above_low && real == range.low))
    wrong(value, path, wish);
  out = *number;
}

void Reader::read(const Value& value, const std::string& path, double& out, Range range) const {
  const std::string wish = cat(range.below_high ? "" : "a ", range.words, "number");
  const auto scalar = scalar_of(value, path, wish);
  const auto number = scalar ? parse_real(scalar->text) : std::nullopt;
  if (!number || (std::isinf(*number) && !range.infinite) || *number < range.low || *number > range.high ||
      (range.above_low && *number == range.low) || (range.below_high && *number == range.high))
    wrong(value, path, wish);
  out = *number;
}

void Reader::read(const Value& value, const std::string& path, std::string& out, Range) const {
  const auto scalar = scalar_of(value, path, "text");
  if (!scalar) wrong(value, path, "text");
  const bool looks_typed = parse_flag(scalar->text).has_value() || parse_real(scalar->text).has_value();
  if (scalar->plain && looks_typed)
    wrong(value, path, "text (in quotes where it looks like a number or a switch)");
  out = scalar->text;
}

void Reader::read(const Value& value, const std::string& path, std::optional<DType>& out, Range) const {
  const std::string wish = "auto, bf16 or f32";
  const auto scalar = scalar_of(value, path, wish);
  out.reset();
  if (!scalar || scalar->text == "auto") return;
  try {
    out = parse_dtype(scalar->text);
  } catch (const Error&) {
    wrong(value, path, wish);
  }
  if (*out != DType::bf16 && *out != DType::f32) wrong(value, path, wish);
}

void Reader::read(const Value& value, const std::string& path, std::array<double, 2>& out,
                  Range range) const {
  // A Python tuple in YAML is the text "(0.9, 0.95)".
  Value list;
  if (value.kind == Value::Kind::scalar && value.text.starts_with('(') && value.text.ends_with(')')) {
    list = parse_yaml(cat("[", value.text.substr(1, value.text.size() - 2), "]"), where(&value, path));
  }
  const Value& from = list.kind == Value::Kind::list ? list : value;
  if (from.kind != Value::Kind::list || from.items.size() != 2) wrong(value, path, "a list of two numbers");
  for (std::size_t i = 0; i < 2; ++i) read(from.items[i], cat(path, ".", i), out[i], range);
}

std::string Reader::choice_word(const Value& value, const std::string& path, const std::string& wish) const {
  const auto scalar = scalar_of(value, path, wish);
  if (!scalar) wrong(value, path, wish);
  if (path.ends_with("_target_")) return last_component(scalar->text);
  const auto flag = parse_flag(scalar->text);
  return flag ? (*flag ? "true" : "false") : scalar->text;
}

void Reader::unknown_choice(const Value& value, const std::string& path, const std::string& word,
                            const std::string& known) const {
  if (path.ends_with("_target_"))
    fail(where(&value, path), ": no class '", word, "' in this build (found '", value.text,
         "'); known: ", known);
  wrong(value, path, cat("one of ", known));
}

void Reader::word_map(const char* key, std::map<std::string, std::string, std::less<>>& out) {
  const Value* value = take(key);
  const Value* map = value != nullptr ? as_section(*value, path_of(key)) : nullptr;
  if (map == nullptr) return;
  for (const auto& [name, word] : map->entries) read(word, cat(path_of(key), ".", name), out[name], any);
}

void Reader::path_or_section(const char* key, std::optional<std::string>& out) {
  const Value* value = take(key);
  if (value == nullptr) return;
  if (value->kind != Value::Kind::map) return read(*value, path_of(key), out, any);
  section(key, [&](Reader& sub) {
    sub.field("pretrained_model_name_or_path", out);
    sub.ignored({"_target_", "trust_remote_code", "torch_dtype", "attn_implementation"});
    sub.only("num_nextn_predict_layers", {"0"}, "multi-token prediction");
  });
}

void Reader::signals(const char* key, std::vector<int>& out) {
  const Value* value = take(key);
  if (value == nullptr) return;
  const std::string path = path_of(key);
  const std::string wish =
      "signals by number or name (SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM)";
  std::vector<const Value*> items{value};
  if (value->kind == Value::Kind::list) items = as_list(*value, path);
  out.clear();
  for (const Value* item : items) {
    const auto scalar = scalar_of(*item, path, wish);
    if (!scalar) continue;
    int number = static_cast<int>(std::clamp<std::int64_t>(parse_integer(scalar->text).value_or(0), 0, 65));
    for (const auto& [name, candidate] : signal_names)
      if (scalar->text == name) number = candidate;
    if (number < 1 || number > 64 || number == SIGKILL || number == SIGSTOP) wrong(*item, path, wish);
    out.push_back(number);
  }
}

void Reader::ignored(std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (has(key)) reading_.no_effect.push_back(path_of(key));
}

void Reader::ignored_section(const char* key) {
  ignored({key});
  if (const Value* value = take(key)) as_section(*value, path_of(key));
}

void Reader::known_class(const char* key, std::initializer_list<const char*> names) {
  const Value* value = take(key);
  if (value == nullptr) return;
  const auto scalar = scalar_of(*value, path_of(key), "the name of a class");
  if (!scalar) return;
  const std::string word = last_component(scalar->text);
  if (std::find(names.begin(), names.end(), word) == names.end())
    fail(where(value, path_of(key)), ": no class or function '", word, "' in this build (found '",
         value->text, "'); known: ", joined(names));
}

void Reader::only(const char* key, std::initializer_list<const char*> values, const char* feature) {
  const Value* value = take(key);
  if (value == nullptr || value->kind == Value::Kind::null) return;
  const bool is_scalar = value->kind == Value::Kind::scalar;
  if (!is_scalar && value->items.empty() && value->entries.empty()) return;
  const std::string path = path_of(key);
  if (is_scalar) {
    const auto scalar = resolve_scalar(*value, where(value, path));
    if (!scalar) return;
    for (const char* accepted : values) {
      const auto flag = parse_flag(scalar->text);
      const auto number = parse_real(scalar->text);
      if (scalar->text == accepted || (flag && flag == parse_flag(accepted)) ||
          (number && number == parse_real(accepted)))
        return;
    }
  }
  const bool none = values.size() == 0;
  fail(where(value, path), ": ", feature, " is not in this build; want ", none ? "null" : joined(values),
       ", found ", found(*value));
}

void Reader::unknown_key(const Value& value, const std::string& key, const std::string& guess) const {
  fail(where(&value, path_of(key)), ": unknown key '", key, "'; the nearest known key is '", guess, "'");
}

void Reader::finish() const {
  if (map_ == nullptr) return;
  for (const auto& [key, value] : map_->entries) {
    if (std::find(taken_.begin(), taken_.end(), key) != taken_.end()) continue;
    const std::string guess = nearest(key, taken_);
    if (edit_distance(key, guess) <= (key.size() + 2) / 3) unknown_key(value, key, guess);
    // A key in the wrong section is further from its neighbours than from its own name elsewhere.
    for (const std::string& path : reading_.known_paths)
      if ((path.ends_with(cat(".", key)) || path == key) && path != path_of(key))
        unknown_key(value, key, path);
    fail(where(&value, path_of(key)), ": unknown key '", key, "'; known here: ", joined(taken_));
  }
}

}  // namespace nemocube::recipe
