#include "train/recipe/variables.h"

#include <algorithm>

#include "core/environment.h"
#include "core/error.h"
#include "core/quote.h"
#include "train/recipe/scalar.h"
#include "train/recipe/words.h"

namespace nemocube::recipe {
namespace {

constexpr std::size_t max_expanded_bytes = 1u << 20;

bool starts_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool in_name(char c) { return starts_name(c) || (c >= '0' && c <= '9'); }

std::string environment(std::string_view name, const std::optional<std::string>& fallback,
                        std::string_view reference, const std::string& where) {
  if (const char* value = variable_named_in_recipe(std::string(name))) return value;
  require(fallback.has_value(), where, ": environment variable ", quote(name), " is not set (wanted by ",
          excerpt(reference), ")");
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

/// The value of `reference`, which is ${NAME}, ${oc.env:NAME} or one of them with ",default" after the name.
std::string braced(std::string_view reference, const std::string& where) {
  std::string_view name = trimmed(reference.substr(2, reference.size() - 3));
  if (name.starts_with("oc.env:")) name = trimmed(name.substr(7));
  std::optional<std::string> fallback;
  if (const auto comma = name.find(','); comma != std::string_view::npos) {
    fallback = trimmed(name.substr(comma + 1));
    name = trimmed(name.substr(0, comma));
  }
  return environment(name, fallback, reference, where);
}

std::string expand(std::string_view text, const std::string& where) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    require(out.size() <= max_expanded_bytes, where, ": more than ", max_expanded_bytes,
            " bytes once its variables are expanded");
    if (text[at] != '$') {
      out += text[at++];
      continue;
    }
    const std::size_t after = std::min(text.find_first_not_of('$', at), text.size());
    const std::size_t dollars = after - at;
    const bool refers = after < text.size() && (starts_name(text[after]) || text[after] == '{');
    if (!refers || dollars > 1) {
      out.append(refers ? dollars - 1 : dollars, '$');
      at = after;
      if (refers) out += text[at++];
      continue;
    }
    const bool has_brace = text[after] == '{';
    const std::size_t close = has_brace ? text.find('}', after) : 0;
    if (close == std::string_view::npos) {
      out += text.substr(at);
      break;
    }
    const std::size_t end = has_brace ? close + 1 : name_end(text, after);
    const std::string_view reference = text.substr(at, end - at);
    out += has_brace ? braced(reference, where) : environment(reference.substr(1), {}, reference, where);
    at = end;
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
  if (scalar.plain && means_null(scalar.text)) return std::nullopt;
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

}  // namespace nemocube::recipe
