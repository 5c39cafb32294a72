#include "train/recipe/types.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <csignal>
#include <span>

#include "core/error.h"
#include "core/quote.h"
#include "train/recipe/scalar.h"
#include "train/recipe/variables.h"
#include "train/recipe/words.h"

namespace nemocube::recipe {
namespace {

constexpr std::array<std::pair<const char*, int>, 7> signal_names{{{"SIGTERM", SIGTERM},
                                                                   {"SIGINT", SIGINT},
                                                                   {"SIGHUP", SIGHUP},
                                                                   {"SIGQUIT", SIGQUIT},
                                                                   {"SIGUSR1", SIGUSR1},
                                                                   {"SIGUSR2", SIGUSR2},
                                                                   {"SIGALRM", SIGALRM}}};

/// Nothing for null, lists and sections.
std::optional<Scalar> scalar_of(const Place& at) {
  if (at.value.kind != Value::Kind::scalar) return std::nullopt;
  return resolve_scalar(at.value, at.where);
}

std::string shortest(double value) {
  std::array<char, 32> buffer;
  return {buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr};
}

bool holds(Range range, double value) {
  if (std::isinf(value)) return range.infinite && value > 0;
  return (range.above_low ? value > range.low : value >= range.low) &&
         (range.below_high ? value < range.high : value <= range.high);
}

std::string wish_for_number(const std::string& noun, Range range) {
  const std::string article = noun == "integer" ? "an " : "a ";
  std::string text = article + noun;
  if (std::isfinite(range.high))
    text += range.above_low ? cat(" above ", shortest(range.low), ", at most ", shortest(range.high))
                            : cat(" from ", shortest(range.low), range.below_high ? " to below " : " to ",
                                  shortest(range.high));
  else if (std::isfinite(range.low))
    text = cat(range.above_low ? "a positive " : "a nonnegative ", noun);
  return range.infinite ? text + " or .inf" : text;
}

std::string text_of_real(double value) {
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  std::string text = shortest(value);
  if (text.find('.') != std::string::npos) return text;
  // YAML 1.1 takes 1e-05 for a string.
  return text.insert(std::min(text.find('e'), text.size()), ".0");
}

template <class T>
void read_as(const Place& at, T& out, Range range, std::optional<T> (*parse)(std::string_view)) {
  const auto scalar = scalar_of(at);
  const auto value = scalar ? parse(scalar->text) : std::nullopt;
  if (!value || !holds(range, static_cast<double>(*value))) wrong(at, show(out, range).wish);
  out = *value;
}

}  // namespace

std::string key_in_quotes(const std::string& key) {
  std::string out = "\"";
  for (const char c : key) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      constexpr char hex[] = "0123456789abcdef";
      out += cat("\\x", hex[(c >> 4) & 15], hex[c & 15]);
    } else {
      out += c;
    }
  }
  return out + '"';
}

static std::string in_quotes(const std::string& value) { return key_in_quotes(escape_variables(value)); }

bool is_null(const Place& at) {
  return at.value.kind == Value::Kind::null ||
         (at.value.kind == Value::Kind::scalar && !resolve_scalar(at.value, at.where));
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
      return quote(value.text);
  }
}

void wrong(const Place& at, const std::string& wish) {
  fail(at.where, ": want ", wish, ", found ", found(at.value));
}

const Value* as_section(const Place& at) {
  if (at.value.kind == Value::Kind::map) return &at.value;
  if (!is_null(at)) wrong(at, "a section of keys");
  return nullptr;
}

void read(const Place& at, bool& out, Range range) { read_as(at, out, range, parse_flag); }
void read(const Place& at, std::int64_t& out, Range range) { read_as(at, out, range, parse_integer); }
void read(const Place& at, double& out, Range range) { read_as(at, out, range, parse_real); }

void read(const Place& at, std::string& out, Range range) {
  const auto scalar = scalar_of(at);
  if (!scalar) wrong(at, show(out, range).wish);
  const bool looks_typed = parse_flag(scalar->text).has_value() || parse_real(scalar->text).has_value();
  if (scalar->plain && looks_typed) wrong(at, "text (in quotes where it looks like a number or a switch)");
  out = scalar->text;
}

void read(const Place& at, std::optional<DType>& out, Range range) {
  out.reset();
  if (is_null(at)) return;
  const auto scalar = scalar_of(at);
  if (scalar && scalar->text == "auto") return;
  try {
    if (scalar) out = parse_dtype(scalar->text);
  } catch (const Error&) {
    out.reset();  // refused below
  }
  if (out == DType::bf16 || out == DType::f32 || out == DType::f64) return;
  const std::string name = scalar ? last_component(lower_case(scalar->text)) : "";
  const bool half = name == "fp16" || name == "float16" || name == "f16" || name == "half";
  wrong(at,
        cat(show(out, range).wish,
            half ? " (bf16 is as small; the numbers of f16 end at 65504, and nothing here scales losses to "
                   "fit them)"
                 : ""));
}

void read(const Place& at, std::array<double, 2>& out, Range range) {
  // A Python tuple in YAML is the text "(0.9, 0.95)".
  Value tuple;
  if (at.value.kind == Value::Kind::scalar && at.value.text.starts_with('(') && at.value.text.ends_with(')'))
    tuple = parse_yaml_value(cat("[", at.value.text.substr(1, at.value.text.size() - 2), "]"), at.where,
                             at.value.line);
  const Value& list = tuple.kind == Value::Kind::list ? tuple : at.value;
  if (list.kind != Value::Kind::list || list.items.size() != 2) wrong(at, show(out, range).wish);
  for (std::size_t i = 0; i < 2; ++i)
    read(Place{list.items[i], cat(at.path, ".", i), cat(at.where, ".", i)}, out[i], range);
}

void read(const Place& at, std::vector<int>& out, Range range) {
  const bool is_list = at.value.kind == Value::Kind::list;
  const std::span<const Value> items = is_list ? std::span(at.value.items) : std::span(&at.value, 1);
  out.clear();
  for (const Value& item : items) {
    const Place place{item, at.path, at.where};
    if (is_null(place)) continue;
    const auto scalar = scalar_of(place);
    if (!scalar) wrong(place, show(out, range).wish);
    std::int64_t number = parse_integer(scalar->text).value_or(0);
    for (const auto& [name, candidate] : signal_names)
      if (scalar->text == name) number = candidate;
    if (number < 1 || number > 64 || number == SIGKILL || number == SIGSTOP)
      wrong(place, show(out, range).wish);
    out.push_back(static_cast<int>(number));
  }
}

void read(const Place& at, std::map<std::string, std::string, std::less<>>& out, Range range) {
  const Value* map = as_section(at);
  out.clear();
  if (map == nullptr) return;
  for (const auto& [name, word] : map->entries)
    read(Place{word, cat(at.path, ".", name), cat(at.where, ".", name)}, out[name], range);
}

namespace {

std::span<const Value> items_of(const Place& list, const std::string& wish) {
  if (list.value.kind != Value::Kind::list) wrong(list, wish);
  return list.value.items;
}

Place item_of(const Place& list, std::size_t i) {
  return {list.value.items[i], cat(list.path, ".", i), cat(list.where, ".", i)};
}

void read_texts(const Place& list, std::vector<std::string>& out, const std::string& wish) {
  for (std::size_t i = 0; i < items_of(list, wish).size(); ++i)
    read(item_of(list, i), out.emplace_back(), any);
}

}  // namespace

void read(const Place& at, std::vector<std::string>& out, Range range) {
  out.clear();
  if (is_null(at)) return;
  if (at.value.kind != Value::Kind::list) return read(at, out.emplace_back(), any);
  read_texts(at, out, show(out, range).wish);
}

void read(const Place& at, FileList& out, Range range) {
  out.names.clear();
  const std::string wish = show(out, range).wish;
  if (at.value.kind == Value::Kind::list) {
    read_texts(at, out.names, wish);
    if (out.names.empty() || std::ranges::count(out.names, "") > 0) wrong(at, wish);
    return;
  }
  if (at.value.kind == Value::Kind::map) wrong(at, wish);
  std::string name;
  read(at, name, any);
  if (!name.empty()) out.names.push_back(name);
}

void read(const Place& at, std::vector<std::vector<std::string>>& out, Range range) {
  out.clear();
  if (is_null(at)) return;
  const std::string wish = show(out, range).wish;
  for (std::size_t i = 0; i < items_of(at, wish).size(); ++i)
    read_texts(item_of(at, i), out.emplace_back(), wish);
}

void read(const Place& at, VariableText& out, Range range) {
  const auto scalar = scalar_of(at);
  if (!scalar) wrong(at, show(out, range).wish);
  const auto flag = scalar->plain ? parse_flag(scalar->text) : std::nullopt;
  out.text = flag ? (*flag ? "1" : "0") : scalar->text;
}

void read(const Place& at, RecipeClass& out, Range range) {
  const Value* target = at.value.find("_target_");
  if (target == nullptr && at.value.kind != Value::Kind::scalar) wrong(at, show(out, range).wish);
  if (target == nullptr) return read(at, out.text, range);
  read(Place{*target, at.path + "._target_", at.where}, out.text, range);
}

void read(const Place& at, NeftuneSetting& out, Range range) {
  const auto scalar = scalar_of(at);
  if (scalar && parse_flag(scalar->text) == false)
    out.alpha = 0;
  else if (const auto alpha = scalar ? parse_real(scalar->text) : std::nullopt; alpha && holds(range, *alpha))
    out.alpha = *alpha;
  else
    wrong(at, show(out, range).wish);
}

std::size_t read_choice(const Place& at, const std::vector<std::string>& names, const char* class_noun) {
  const auto scalar = scalar_of(at);
  if (!scalar) wrong(at, "one of " + joined(names));
  const auto flag = parse_flag(scalar->text);
  const std::string word = class_noun != nullptr ? last_component(scalar->text)
                           : flag                ? (*flag ? "true" : "false")
                                                 : scalar->text;
  const auto name = std::ranges::find(names, word);
  if (name != names.end()) return static_cast<std::size_t>(name - names.begin());
  if (class_noun == nullptr) wrong(at, "one of " + joined(names));
  fail(at.where, ": no ", class_noun, " ", quote(word), " in this build (found ", quote(at.value.text),
       "); known: ", joined(names));
}

Shown show(bool value, Range) { return {"true or false", value ? "true" : "false"}; }

Shown show(std::int64_t value, Range range) {
  return {wish_for_number("integer", range), std::to_string(value)};
}

Shown show(double value, Range range) { return {wish_for_number("number", range), text_of_real(value)}; }

Shown show(const std::string& value, Range) { return {"text", in_quotes(value)}; }

Shown show(const std::optional<DType>& value, Range) {
  return {"auto, bf16, f32 or f64", value ? std::string(name_of(*value)) : "auto"};
}

Shown show(const std::array<double, 2>& value, Range range) {
  return {"a list of two numbers, each " + wish_for_number("number", range),
          cat("[", text_of(value[0]), ", ", text_of(value[1]), "]")};
}

Shown show(const std::vector<int>& value, Range) {
  std::vector<std::string> numbers, names;
  for (const int number : value) numbers.push_back(std::to_string(number));
  for (const auto& [name, number] : signal_names) names.push_back(name);
  return {cat("signals by number or name (", joined(names), ")"),
          value.empty() ? "null" : cat("[", joined(numbers), "]")};
}

Shown show(const std::map<std::string, std::string, std::less<>>& value, Range) {
  std::vector<std::string> entries;
  for (const auto& [name, word] : value) entries.push_back(cat(key_in_quotes(name), ": ", in_quotes(word)));
  return {"a section of words", cat("{", joined(entries), "}")};
}

namespace {

std::string list_text(const std::vector<std::string>& texts) {
  std::vector<std::string> items;
  for (const std::string& text : texts) items.push_back(in_quotes(text));
  return cat("[", joined(items), "]");
}

}  // namespace

Shown show(const std::vector<std::string>& value, Range) {
  return {"a text, a list of texts or null", value.empty() ? "null" : list_text(value)};
}

Shown show(const std::vector<std::vector<std::string>>& value, Range) {
  std::vector<std::string> lists;
  for (const auto& texts : value) lists.push_back(list_text(texts));
  return {"a list of lists of text or null", value.empty() ? "null" : cat("[", joined(lists), "]")};
}

Shown show(const FileList& value, Range) {
  return {"text, or a list of texts", value.names.empty()       ? in_quotes("")
                                      : value.names.size() == 1 ? in_quotes(value.names[0])
                                                                : list_text(value.names)};
}

Shown show(const VariableText& value, Range) {
  return {"text, a number, or true or false", in_quotes(value.text)};
}

Shown show(const NeftuneSetting& value, Range range) {
  return {wish_for_number("number", range), text_of_real(value.alpha)};
}

Shown show(const RecipeClass& value, Range) {
  return {"a class, or a section with _target_", value.text.empty() ? "" : in_quotes(value.text)};
}

}  // namespace nemocube::recipe
