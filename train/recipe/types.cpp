#include "train/recipe/types.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <csignal>

#include "core/error.h"
#include "core/quote.h"
#include "train/recipe/scalar.h"
#include "train/recipe/variables.h"

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
    text +=
        cat(" from ", shortest(range.low), range.below_high ? " to below " : " to ", shortest(range.high));
  else if (std::isfinite(range.low))
    text = cat(range.above_low ? "a positive " : "a nonnegative ", noun);
  return range.infinite ? text + " or .inf" : text;
}

}  // namespace

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

std::string last_component(const std::string& dotted_path) {
  const auto dot = dotted_path.find_last_of(".:");
  return dot == std::string::npos ? dotted_path : dotted_path.substr(dot + 1);
}

void read(const Place& at, bool& out, Range range) {
  const auto scalar = scalar_of(at);
  const auto flag = scalar ? parse_flag(scalar->text) : std::nullopt;
  if (!flag) wrong(at, wish_for(&out, range));
  out = *flag;
}

void read(const Place& at, std::int64_t& out, Range range) {
  const auto scalar = scalar_of(at);
  const auto number = scalar ? parse_integer(scalar->text) : std::nullopt;
  if (!number || !holds(range, static_cast<double>(*number))) wrong(at, wish_for(&out, range));
  out = *number;
}

void read(const Place& at, double& out, Range range) {
  const auto scalar = scalar_of(at);
  const auto number = scalar ? parse_real(scalar->text) : std::nullopt;
  if (!number || !holds(range, *number)) wrong(at, wish_for(&out, range));
  out = *number;
}

void read(const Place& at, std::string& out, Range range) {
  const auto scalar = scalar_of(at);
  if (!scalar) wrong(at, wish_for(&out, range));
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
  }
  if (out != DType::bf16 && out != DType::f32) wrong(at, wish_for(&out, range));
}

void read(const Place& at, std::array<double, 2>& out, Range range) {
  // A Python tuple in YAML is the text "(0.9, 0.95)".
  Value tuple;
  if (at.value.kind == Value::Kind::scalar && at.value.text.starts_with('(') && at.value.text.ends_with(')'))
    tuple = parse_yaml_value(cat("[", at.value.text.substr(1, at.value.text.size() - 2), "]"), at.where,
                             at.value.line);
  const Value& list = tuple.kind == Value::Kind::list ? tuple : at.value;
  if (list.kind != Value::Kind::list || list.items.size() != 2) wrong(at, wish_for(&out, range));
  for (std::size_t i = 0; i < 2; ++i)
    read(Place{list.items[i], cat(at.path, ".", i), cat(at.where, ".", i)}, out[i], range);
}

void read(const Place& at, std::vector<int>& out, Range range) {
  std::vector<const Value*> items;
  if (at.value.kind == Value::Kind::list)
    for (const Value& item : at.value.items) items.push_back(&item);
  else
    items.push_back(&at.value);
  out.clear();
  for (const Value* item : items) {
    const Place place{*item, at.path, at.where};
    if (is_null(place)) continue;
    const auto scalar = scalar_of(place);
    if (!scalar) wrong(place, wish_for(&out, range));
    int number = static_cast<int>(std::clamp<std::int64_t>(parse_integer(scalar->text).value_or(0), 0, 65));
    for (const auto& [name, candidate] : signal_names)
      if (scalar->text == name) number = candidate;
    if (number < 1 || number > 64 || number == SIGKILL || number == SIGSTOP)
      wrong(place, wish_for(&out, range));
    out.push_back(number);
  }
}

void read(const Place& at, std::map<std::string, std::string, std::less<>>& out, Range range) {
  const Value* map = as_section(at);
  out.clear();
  if (map == nullptr) return;
  for (const auto& [name, word] : map->entries)
    read(Place{word, cat(at.path, ".", name), cat(at.where, ".", name)}, out[name], range);
}

std::size_t read_choice(const Place& at, const std::vector<const char*>& names) {
  const bool is_class = at.path.ends_with("_target_");
  const auto scalar = scalar_of(at);
  if (!scalar) wrong(at, wish_for_choice(names));
  const auto flag = parse_flag(scalar->text);
  const std::string word = is_class ? last_component(scalar->text)
                           : flag   ? (*flag ? "true" : "false")
                                    : scalar->text;
  const auto name = std::ranges::find(names, word);
  if (name != names.end()) return static_cast<std::size_t>(name - names.begin());
  if (is_class)
    fail(at.where, ": no class ", quote(word), " in this build (found ", quote(at.value.text),
         "); known: ", wish_for_choice(names).substr(7));
  wrong(at, wish_for_choice(names));
}

std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(std::int64_t value) { return std::to_string(value); }
std::string text_of(const std::optional<DType>& value) {
  return value ? std::string(name_of(*value)) : "auto";
}
std::string text_of(const std::array<double, 2>& value) {
  return cat("[", text_of(value[0]), ", ", text_of(value[1]), "]");
}

std::string text_of(double value) {
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  std::string text = shortest(value);
  if (text.find('.') != std::string::npos) return text;
  // YAML 1.1 takes 1e-05 for a string.
  return text.insert(std::min(text.find('e'), text.size()), ".0");
}

std::string text_of(const std::string& value) {
  std::string out = "\"";
  for (const char c : escape_variables(value)) {
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

std::string text_of(const std::vector<int>& value) {
  std::string out;
  for (const int number : value) out += cat(out.empty() ? "" : ", ", number);
  return value.empty() ? "null" : cat("[", out, "]");
}

std::string text_of(const std::map<std::string, std::string, std::less<>>& value) {
  std::string out;
  for (const auto& [name, word] : value)
    out += cat(out.empty() ? "" : ", ", text_of(name), ": ", text_of(word));
  return cat("{", out, "}");
}

std::string wish_for(const bool*, Range) { return "true or false"; }
std::string wish_for(const std::int64_t*, Range range) { return wish_for_number("integer", range); }
std::string wish_for(const double*, Range range) { return wish_for_number("number", range); }
std::string wish_for(const std::string*, Range) { return "text"; }
std::string wish_for(const std::optional<DType>*, Range) { return "auto, bf16 or f32"; }
std::string wish_for(const std::array<double, 2>*, Range range) {
  return "a list of two numbers, each " + wish_for_number("number", range);
}
std::string wish_for(const std::vector<int>*, Range) {
  return "signals by number or name (SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM)";
}
std::string wish_for(const std::map<std::string, std::string, std::less<>>*, Range) {
  return "a section of words";
}

std::string wish_for_choice(const std::vector<const char*>& names) {
  std::string known;
  for (const char* name : names) known += cat(known.empty() ? "" : ", ", name);
  return "one of " + known;
}

}  // namespace nemocube::recipe
