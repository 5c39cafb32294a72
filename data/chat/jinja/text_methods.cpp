#include <algorithm>
#include <functional>
#include <map>

#include "data/chat/jinja/arguments.h"
#include "data/chat/jinja/formatting.h"
#include "data/chat/jinja/letters.h"
#include "data/chat/jinja/methods.h"
#include "data/chat/jinja/text.h"

namespace nemocube::jinja {

namespace {

/// A text made of `self` is markup when `self` is.
Value like(Interpreter& interpreter, const Value& self, std::string bytes) {
  return interpreter.text(std::move(bytes), self.is_markup());
}

/// An argument as it goes into `self`: escaped where `self` is markup and the argument is not.
std::string inserted(Interpreter& interpreter, const Value& self, const Value& argument) {
  if (!self.is_markup() || argument.is_markup()) return argument.bytes();
  return escape_markup(argument.bytes(), interpreter.budget());
}

template <std::string (*change)(std::string_view)>
Value changed_text(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  bind("the method", arguments, {});
  interpreter.budget().spend(1 + self.bytes().size());
  return like(interpreter, self, change(self.bytes()));
}

template <bool (*holds)(std::string_view)>
Value asked(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  bind("the method", arguments, {});
  interpreter.budget().spend(1 + self.bytes().size());  // a pattern may look at each character
  return holds(self.bytes());
}

bool all_spaces(std::string_view text) { return !text.empty() && strip(text).empty(); }
bool all_ascii(std::string_view text) { return length_of(text) == text.size(); }
bool all_printable(std::string_view text) {
  bool all = true;
  for_each_character(text, [&](char32_t character, std::string_view) { all &= is_printable(character); });
  return all;
}

using Strip = std::string_view (*)(std::string_view, std::optional<std::string_view>);

template <Strip strip_it>
Value stripped(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Bound bound = bind("strip", arguments, {"characters"}, 0, By::position);
  if (bound.has(0) && bound[0].is_text()) interpreter.budget().spend(bound[0].bytes().size());
  return like(interpreter, self, std::string(strip_it(self.bytes(), bound.text_or_none(0))));
}

Value texts(Interpreter& interpreter, const Value& self, const std::vector<std::string_view>& parts) {
  interpreter.budget().spend_items(parts.size());
  std::vector<Value> values;
  for (const std::string_view part : parts) values.push_back(like(interpreter, self, std::string(part)));
  return interpreter.list(std::move(values));
}

template <bool from_right>
Value split(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Bound bound = bind(from_right ? "rsplit" : "split", arguments, {"sep", "maxsplit"});
  const auto separator = bound.text_or_none(0);
  const std::int64_t most = bound.integer(1, -1);
  if (!separator)
    return texts(interpreter, self, split_at_spaces(self.bytes(), most, from_right, interpreter.budget()));
  if (separator->empty()) raise(from_right ? "rsplit" : "split", " wants a separator that is not empty");
  return texts(interpreter, self, split_at(self.bytes(), *separator, most, from_right, interpreter.budget()));
}

Value splitlines(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const bool keep = bind("splitlines", arguments, {"keepends"}).flag(0, false);
  TextParts lines(interpreter.budget());
  for_each_line(self.bytes(), keep, [&](std::string_view line) { lines.add(line); });
  return texts(interpreter, self, lines.take(false));
}

template <bool from_right>
Value partition(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Bound bound = bind(from_right ? "rpartition" : "partition", arguments, {"sep"}, 1, By::position);
  const std::string& separator = bound.text(0);
  if (separator.empty())
    raise(from_right ? "rpartition" : "partition", " wants a separator that is not empty");
  const std::string_view bytes = self.bytes();
  const std::size_t at = from_right ? find_last(bytes, separator) : find_first(bytes, separator);
  std::vector<std::string_view> parts{bytes, "", ""};
  if (at != std::string_view::npos)
    parts = {bytes.substr(0, at), separator, bytes.substr(at + separator.size())};
  else if (from_right)
    parts = {"", "", bytes};
  std::vector<Value> values;
  for (const std::string_view part : parts) values.push_back(like(interpreter, self, std::string(part)));
  return make_tuple(std::move(values), interpreter.budget());
}

Value replaced(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Bound bound = bind("replace", arguments, {"old", "new", "count"}, 2, By::position);
  bound.text(1);
  return like(interpreter, self,
              replace(self.bytes(), bound.text(0), inserted(interpreter, self, bound[1]),
                      bound.integer(2, -1), interpreter.budget()));
}

Value joined(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Bound bound = bind("join", arguments, {"iterable"}, 1, By::position);
  std::string out;
  bool first = true;
  for (const Value& item : interpreter.collect(bound[0])) {
    if (!first) out += self.bytes();
    first = false;
    if (self.is_markup()) {
      const Value text = item.is_text() ? item : Value(interpreter.to_text(item));
      out += inserted(interpreter, self, text);
    } else {
      if (!item.is_text()) raise("join wants texts, got ", kind_of(item));
      out += item.bytes();
    }
    interpreter.budget().check_text(out.size());
  }
  return like(interpreter, self, std::move(out));
}

/// A range of `self` in bytes, from optional arguments start and end; nothing where start lies behind the
/// end.
std::optional<std::pair<std::size_t, std::size_t>> window(const Value& self, const Bound& bound,
                                                          std::size_t i) {
  const auto length = static_cast<std::int64_t>(self.text().length);
  const auto index = [&](std::size_t which, std::int64_t otherwise) {
    const bool given = bound.has(which) && !bound[which].is_none();
    const std::int64_t at = given ? bound.integer(which) : otherwise;
    return at < 0 ? std::max<std::int64_t>(at + length, 0) : at;
  };
  const std::int64_t begin = index(i, 0), end = std::min(index(i + 1, length), length);
  if (begin > end) return std::nullopt;
  return std::pair(byte_at(self.text(), static_cast<std::size_t>(begin)),
                   byte_at(self.text(), static_cast<std::size_t>(end)));
}

std::int64_t find_from(Interpreter& interpreter, const Value& self, const Bound& bound, bool from_right) {
  interpreter.budget().spend(1 + self.bytes().size() / 16);
  const std::string& part = bound.text(0);
  const auto range = window(self, bound, 1);
  if (!range) return -1;
  const std::string_view inside =
      std::string_view(self.bytes()).substr(range->first, range->second - range->first);
  const std::size_t at = from_right ? find_last(inside, part) : find_first(inside, part);
  if (at == std::string_view::npos) return -1;
  return static_cast<std::int64_t>(length_of(std::string_view(self.bytes()).substr(0, range->first + at)));
}

template <bool from_right>
Value find(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  return Value(find_from(
      interpreter, self,
      bind(from_right ? "rfind" : "find", arguments, {"sub", "start", "end"}, 1, By::position), from_right));
}

template <bool from_right>
Value index(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Bound bound =
      bind(from_right ? "rindex" : "index", arguments, {"sub", "start", "end"}, 1, By::position);
  const std::int64_t at = find_from(interpreter, self, bound, from_right);
  if (at < 0) raise(from_right ? "rindex" : "index", " wants a part of the text");
  return Value(at);
}

Value count_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Bound bound = bind("count", arguments, {"sub", "start", "end"}, 1, By::position);
  interpreter.budget().spend(1 + self.bytes().size() / 16);
  const std::string& part = bound.text(0);
  const auto range = window(self, bound, 1);
  if (!range) return 0;
  return Value(
      count(std::string_view(self.bytes()).substr(range->first, range->second - range->first), part));
}

template <bool at_end>
Value begins_or_ends(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Bound bound =
      bind(at_end ? "endswith" : "startswith", arguments, {"part", "start", "end"}, 1, By::position);
  const auto range = window(self, bound, 1);
  if (!range) return false;
  const std::string_view inside =
      std::string_view(self.bytes()).substr(range->first, range->second - range->first);
  const auto holds = [&](const Value& part) {
    if (!part.is_text())
      raise(at_end ? "endswith" : "startswith", " wants a text or a tuple of texts, got ", kind_of(part));
    interpreter.budget().spend(1 + part.bytes().size() / 64);
    return at_end ? inside.ends_with(part.bytes()) : inside.starts_with(part.bytes());
  };
  if (bound[0].is_tuple()) return std::ranges::any_of(bound[0].items()->values, holds);
  return holds(bound[0]);
}

template <bool at_end>
Value without(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Bound bound = bind(at_end ? "removesuffix" : "removeprefix", arguments, {"part"}, 1, By::position);
  std::string_view bytes = self.bytes();
  const std::string& part = bound.text(0);
  if (at_end && !part.empty() && bytes.ends_with(part)) bytes.remove_suffix(part.size());
  if (!at_end && bytes.starts_with(part)) bytes.remove_prefix(part.size());
  return like(interpreter, self, std::string(bytes));
}

enum class Side { left, right, both };

template <Side side>
Value justified(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Bound bound = bind("the method", arguments, {"width", "fill"}, 1, By::position);
  if (bound.has(1) && (bound.text(1), bound[1].text().length != 1)) raise("want one character to fill with");
  const std::string fill = bound.has(1) ? inserted(interpreter, self, bound[1]) : " ";
  if (length_of(fill) != 1) raise("want one character to fill with");
  const auto length = static_cast<std::int64_t>(self.text().length);
  const std::int64_t pad = std::max<std::int64_t>(bound.integer(0) - length, 0);
  const std::int64_t left = side == Side::left    ? 0
                            : side == Side::right ? pad
                                                  : pad / 2 + (pad & bound.integer(0) & 1);
  return like(interpreter, self, padded(self.bytes(), fill, left, pad - left, interpreter.budget()));
}

Value zfill(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Bound bound = bind("zfill", arguments, {"width"}, 1, By::position);
  std::string_view digits = self.bytes();
  std::string sign;
  if (!digits.empty() && (digits[0] == '+' || digits[0] == '-')) {
    sign = digits[0];
    digits.remove_prefix(1);
  }
  const std::int64_t pad = bound.integer(0) - static_cast<std::int64_t>(self.text().length);
  return like(interpreter, self,
              sign + padded(digits, "0", std::max<std::int64_t>(pad, 0), 0, interpreter.budget()));
}

Value expandtabs(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const std::int64_t size = bind("expandtabs", arguments, {"tabsize"}).integer(0, 8);
  std::string out;
  std::int64_t column = 0;
  for_each_character(self.bytes(), [&](char32_t character, std::string_view bytes) {
    if (character == U'\t') {
      const std::int64_t blanks = size > 0 ? size - column % size : 0;
      interpreter.budget().check_text(out.size() + static_cast<std::size_t>(blanks));
      out.append(static_cast<std::size_t>(blanks), ' ');
      column += blanks;
    } else {
      out += bytes;
      column = character == U'\n' || character == U'\r' ? 0 : column + 1;
    }
  });
  return like(interpreter, self, std::move(out));
}

Value format_method(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  return format_braces(interpreter, self, arguments);
}

Value format_map(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Bound bound = bind("format_map", arguments, {"mapping"}, 1, By::position);
  if (!bound[0].is_mapping()) raise("format_map wants a mapping, got ", kind_of(bound[0]));
  Arguments named;
  for (const auto& [key, value] : bound[0].mapping().entries())
    if (key.is_text()) named.named.emplace_back(key.bytes(), value);
  return format_braces(interpreter, self, named);
}

}  // namespace

const Method* find_text_method(std::string_view name) {
  static const std::map<std::string_view, Method, std::less<>> methods{
      {"capitalize", {changed_text<capitalized>}},
      {"center", {justified<Side::both>}},
      {"count", {count_method}},
      {"endswith", {begins_or_ends<true>}},
      {"expandtabs", {expandtabs}},
      {"find", {find<false>}},
      {"format", {format_method}},
      {"format_map", {format_map}},
      {"index", {index<false>}},
      {"isalnum", {asked<is_alphanumeric>}},
      {"isalpha", {asked<is_alphabetic>}},
      {"isascii", {asked<all_ascii>}},
      {"isdecimal", {asked<is_decimal>}},
      {"isdigit", {asked<is_digit>}},
      {"islower", {asked<is_lower>}},
      {"isnumeric", {asked<is_numeric>}},
      {"isprintable", {asked<all_printable>}},
      {"isspace", {asked<all_spaces>}},
      {"istitle", {asked<is_title>}},
      {"isupper", {asked<is_upper>}},
      {"join", {joined}},
      {"ljust", {justified<Side::left>}},
      {"lower", {changed_text<lower_case>}},
      {"lstrip", {stripped<strip_left>}},
      {"partition", {partition<false>}},
      {"removeprefix", {without<false>}},
      {"removesuffix", {without<true>}},
      {"replace", {replaced}},
      {"rfind", {find<true>}},
      {"rindex", {index<true>}},
      {"rjust", {justified<Side::right>}},
      {"rpartition", {partition<true>}},
      {"rsplit", {split<true>}},
      {"rstrip", {stripped<strip_right>}},
      {"split", {split<false>}},
      {"splitlines", {splitlines}},
      {"startswith", {begins_or_ends<false>}},
      {"strip", {stripped<strip>}},
      {"swapcase", {changed_text<swapped_case>}},
      {"title", {changed_text<title_case>}},
      {"upper", {changed_text<upper_case>}},
      {"zfill", {zfill}},
  };
  const auto found = methods.find(name);
  return found == methods.end() ? nullptr : &found->second;
}

}  // namespace nemocube::jinja
