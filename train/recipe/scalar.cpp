#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "train/recipe/value.h"

namespace nemocube::recipe {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool starts_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool in_name(char c) { return starts_name(c) || is_digit(c); }

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t") - first + 1));
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

std::string environment(const std::string& name, const std::optional<std::string>& fallback,
                        std::string_view token, const std::string& where) {
  if (const char* value = std::getenv(name.c_str())) return value;
  require(fallback.has_value(), where, ": environment variable '", name, "' is not set (wanted by ", token,
          ")");
  return *fallback;
}

/// End of the name starting at `from`: words joined by single dots.
std::size_t name_end(std::string_view text, std::size_t from) {
  std::size_t at = from;
  while (at < text.size() &&
         (in_name(text[at]) || (text[at] == '.' && at + 1 < text.size() && in_name(text[at + 1]))))
    ++at;
  return at;
}

std::string expand(std::string_view text, const std::string& where) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] != '$') {
      out += text[at++];
      continue;
    }
    const std::size_t after = std::min(text.find_first_not_of('$', at), text.size());
    const bool refers = after < text.size() && (starts_name(text[after]) || text[after] == '{');
    if (!refers || after - at > 1) {
      out.append(after - at - (refers ? 1 : 0), '$');
      at = after;
      if (refers) out += text[at++];
      continue;
    }
    if (text[after] != '{') {
      const std::size_t end = name_end(text, after);
      out += environment(std::string(text.substr(after, end - after)), {}, text.substr(at, end - at), where);
      at = end;
      continue;
    }
    const std::size_t close = text.find('}', after);
    if (close == std::string_view::npos) {
      out += text.substr(at);
      break;
    }
    std::string name = trimmed(text.substr(after + 1, close - after - 1));
    if (name.starts_with("oc.env:")) name = trimmed(std::string_view(name).substr(7));
    std::optional<std::string> fallback;
    if (const auto comma = name.find(','); comma != std::string::npos) {
      fallback = trimmed(std::string_view(name).substr(comma + 1));
      name = trimmed(std::string_view(name).substr(0, comma));
    }
    out += environment(name, fallback, text.substr(at, close + 1 - at), where);
    at = close + 1;
  }
  return out;
}

}  // namespace

std::optional<Scalar> resolve_scalar(const Value& value, const std::string& where) {
  if (value.kind == Value::Kind::null) return std::nullopt;
  expect(value.kind == Value::Kind::scalar, where, " is no scalar");
  Scalar scalar{expand(value.text, where), !value.quoted};
  if (scalar.text != value.text) scalar.plain = false;
  if (scalar.text == "none" || scalar.text == "None") return std::nullopt;
  if (scalar.plain && (scalar.text.empty() || scalar.text == "~" || lower(scalar.text) == "null"))
    return std::nullopt;
  return scalar;
}

std::string escape_variables(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size(); ++at) {
    out += text[at];
    const bool last_dollar = text[at] == '$' && at + 1 < text.size() && text[at + 1] != '$';
    if (last_dollar && (starts_name(text[at + 1]) || text[at + 1] == '{')) out += '$';
  }
  return out;
}

std::optional<double> parse_real(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const std::string word = lower(text);
  if (word == ".inf" || word == "inf") {
    const double infinity = std::numeric_limits<double>::infinity();
    return negative ? -infinity : infinity;
  }
  std::string digits;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_')
      digits += text[i];
    else if (i == 0 || i + 1 == text.size() || !is_digit(text[i - 1]) || !is_digit(text[i + 1]))
      return std::nullopt;
  }
  if (digits.empty() || !(is_digit(digits[0]) || digits[0] == '.')) return std::nullopt;
  // 010 is eight to YAML 1.1 and ten to everybody else.
  if (digits.size() > 1 && digits[0] == '0' && is_digit(digits[1])) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return negative ? -value : value;
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  const auto real = parse_real(text);
  if (!real || !std::isfinite(*real)) return std::nullopt;
  std::string digits(text);
  std::erase(digits, '_');
  if (digits.starts_with('+')) digits.erase(0, 1);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc{} && end == digits.data() + digits.size()) return value;
  constexpr double exact = 9007199254740992.0;  // 2^53: beyond it a double no longer holds every integer
  if (std::abs(*real) > exact || *real != std::floor(*real)) return std::nullopt;
  return static_cast<std::int64_t>(*real);
}

std::optional<bool> parse_flag(std::string_view text) {
  const std::string word = lower(text);
  if (word == "true" || word == "yes" || word == "on") return true;
  if (word == "false" || word == "no" || word == "off") return false;
  return std::nullopt;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        now[j] = std::min(now[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, now);
  }
  return last[b.size()];
}

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  std::string best;
  std::size_t best_distance = std::numeric_limits<std::size_t>::max();
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace nemocube::recipe
