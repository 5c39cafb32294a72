#include <algorithm>
#include <charconv>

#include "core/quote.h"
#include "data/chat/jinja/formatting.h"
#include "data/chat/jinja/numbers.h"
#include "data/chat/jinja/printing.h"
#include "data/chat/jinja/text.h"

namespace nemocube::jinja {

namespace {

std::int64_t read_number(std::string_view& rest) {
  std::int64_t value = 0;
  for (; !rest.empty() && rest[0] >= '0' && rest[0] <= '9'; rest.remove_prefix(1)) {
    value = value * 10 + (rest[0] - '0');
    if (value > 1'000'000'000) raise("format wants a smaller width or precision");
  }
  return value;
}

bool is_align(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

/// [[fill]align][sign][#][0][width][,|_][.precision][type]
struct FormatSpec {
  std::string fill = " ";
  char align = '\0', sign = '-', grouping = '\0', type = '\0';
  bool alternate = false;
  std::int64_t width = 0, precision = -1;

  explicit FormatSpec(std::string_view rest) {
    const std::size_t first = rest.empty() ? 0 : utf8_step(rest, 0).length;
    bool filled = false;
    if (rest.size() > first && first > 0 && is_align(rest[first])) {
      fill = rest.substr(0, first);
      filled = true;
      align = rest[first];
      rest.remove_prefix(first + 1);
    } else if (!rest.empty() && is_align(rest[0])) {
      align = take(rest);
    }
    if (!rest.empty() && (rest[0] == '+' || rest[0] == '-' || rest[0] == ' ')) sign = take(rest);
    if (rest.starts_with('#')) {
      take(rest);
      alternate = true;
    }
    if (rest.starts_with('0')) {
      take(rest);
      if (!filled) fill = "0";
      if (align == '\0') align = '=';
    }
    width = read_number(rest);
    if (!rest.empty() && (rest[0] == ',' || rest[0] == '_')) grouping = take(rest);
    if (rest.starts_with('.')) {
      take(rest);
      if (rest.empty() || rest[0] < '0' || rest[0] > '9') raise("format wants a number behind the point");
      precision = read_number(rest);
    }
    if (!rest.empty()) type = take(rest);
    if (!rest.empty()) raise("format wants a format such as >10 or .2f, got ", quote(rest), " behind it");
  }

 private:
  static char take(std::string_view& rest) {
    const char c = rest[0];
    rest.remove_prefix(1);
    return c;
  }
};

class BraceFormat {
 public:
  BraceFormat(Interpreter& interpreter, const Value& format, const Arguments& arguments)
      : interpreter_(interpreter), markup_(format.is_markup()), arguments_(arguments) {}

  std::string run(std::string_view format, int depth = 2) {
    std::string out;
    while (!format.empty()) {
      const std::size_t brace = std::min(format.find_first_of("{}"), format.size());
      out += format.substr(0, brace);
      format.remove_prefix(brace);
      if (format.empty()) break;
      if (format.starts_with("{{") || format.starts_with("}}")) {
        out += format[0];
        format.remove_prefix(2);
        continue;
      }
      if (format[0] == '}') raise("format wants { before }");
      out += field(field_text(format), depth);
      interpreter_.budget().check_text(out.size());
    }
    return out;
  }

 private:
  /// What stands between { and its }.
  static std::string_view field_text(std::string_view& format) {
    int depth = 0;
    for (std::size_t i = 0; i < format.size(); ++i) {
      depth += format[i] == '{' ? 1 : format[i] == '}' ? -1 : 0;
      if (depth > 0) continue;
      const std::string_view text = format.substr(1, i - 1);
      format.remove_prefix(i + 1);
      return text;
    }
    raise("format wants } behind {");
  }

  std::string field(std::string_view text, int depth) {
    if (depth == 0) raise("format wants at most one { inside another");
    const std::size_t end = std::min(text.find_first_of("!:"), text.size());
    Value value = look_up(text.substr(0, end));
    text.remove_prefix(end);
    char conversion = '\0';
    if (text.starts_with('!')) {
      if (text.size() < 2 || (text.size() > 2 && text[2] != ':')) raise("format wants !s or !r");
      conversion = text[1];
      text.remove_prefix(2);
    }
    if (conversion == 'r') {
      value = interpreter_.text(to_repr(value, interpreter_.budget()));
    } else if (conversion == 's') {
      value = interpreter_.text(interpreter_.to_text(value));
    } else if (conversion != '\0') {
      raise("format wants !s or !r, got !", std::string(1, conversion));
    }
    const std::string spec = text.empty() ? "" : run(text.substr(1), depth - 1);
    const bool safe = value.is_markup();
    if (safe && markup_ && !spec.empty()) raise("format has no formats for markup");
    std::string out = formatted(value, spec);
    return markup_ && !safe ? escape_markup(out, interpreter_.budget()) : out;
  }

  Value look_up(std::string_view name) {
    const std::size_t end = std::min(name.find_first_of(".["), name.size());
    Value value = argument(name.substr(0, end));
    name.remove_prefix(end);
    while (!name.empty()) {
      if (name[0] == '.') {
        const std::size_t stop = std::min(name.find_first_of(".[", 1), name.size());
        if (stop == 1) raise("format wants the name of an attribute behind the point");
        value = interpreter_.attribute(value, std::string(name.substr(1, stop - 1)));
        name.remove_prefix(stop);
      } else {
        const std::size_t stop = name.find(']');
        if (name[0] != '[' || stop == std::string_view::npos || stop == 1)
          raise("format wants a key between [ and ]");
        const std::string_view key = name.substr(1, stop - 1);
        const auto number = as_number(key);
        value = interpreter_.item(value, number ? Value(*number) : Value(std::string(key)));
        name.remove_prefix(stop + 1);
      }
    }
    return value;
  }

  static std::optional<std::int64_t> as_number(std::string_view text) {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || text[0] == '-') return std::nullopt;
    return number;
  }

  Value argument(std::string_view name) {
    const auto number = name.empty() ? std::optional<std::int64_t>() : as_number(name);
    if (name.empty() || number) {
      (name.empty() ? automatic_ : manual_) = true;
      if (automatic_ && manual_) raise("format wants numbers in all fields or in none");
      const std::size_t i = number ? static_cast<std::size_t>(*number) : next_++;
      if (i >= arguments_.positional.size())
        raise("format wants a value for field ", i, ", got ", arguments_.positional.size());
      return arguments_.positional[i];
    }
    interpreter_.budget().spend(arguments_.named.size() * (1 + name.size() / 64));
    for (const auto& [key, value] : arguments_.named)
      if (key == name) return value;
    raise("format wants a value for the field ", quote(name));
  }

  std::string formatted(const Value& value, const std::string& spec_text) {
    if (spec_text.empty()) return interpreter_.to_text(value);
    const FormatSpec spec(spec_text);
    if (value.is_text()) return formatted_text(value.text(), spec);
    if (value.is_bool() && spec.type == '\0')
      raise("format of a boolean wants a type such as d or s; convert it with !s");
    if (value.is_number()) return formatted_number(value, spec);
    raise("format wants no format for ", kind_of(value), "; convert it with !s");
  }

  std::string aligned(const FormatSpec& spec, const std::string& text, char align) {
    const std::int64_t blanks =
        std::max<std::int64_t>(spec.width - static_cast<std::int64_t>(length_of(text)), 0);
    const std::int64_t left = align == '<' ? 0 : align == '^' ? blanks / 2 : blanks;
    return padded(text, spec.fill, left, blanks - left, interpreter_.budget());
  }

  std::string formatted_text(const Text& text, const FormatSpec& spec) {
    if ((spec.type != '\0' && spec.type != 's') || spec.sign != '-' || spec.grouping != '\0' ||
        spec.alternate || (spec.align == '=' && spec.fill != "0"))
      raise("format of a text wants fill, alignment, width and precision only");
    std::string bytes = text.bytes;
    if (spec.precision >= 0) bytes.resize(byte_at(text, static_cast<std::size_t>(spec.precision)));
    return aligned(spec, bytes, spec.align == '\0' || spec.align == '=' ? '<' : spec.align);
  }

  std::string formatted_number(const Value& value, const FormatSpec& spec) {
    NumberStyle style;
    style.type = spec.type == '\0' ? (value.is_float() ? 'r' : 'd') : spec.type;
    style.alternate = spec.alternate;
    style.sign = spec.sign;
    style.grouping = spec.grouping;
    style.precision = static_cast<int>(std::min<std::int64_t>(spec.precision, 1'000'000));
    const bool real = std::string_view("eEfFgG%").find(style.type) != std::string_view::npos;
    const bool whole = std::string_view("dxXob").find(style.type) != std::string_view::npos;
    if (style.type == 'r') {
      if (spec.precision >= 0) raise("format of a float wants a type such as f or g behind the precision");
      style.type = 'g';
    } else if ((!real && !whole) || (whole && value.is_float())) {
      raise("format of ", kind_of(value), " wants another type than ", quote(std::string(1, style.type)));
    }
    NumberText text = number_text(value, style);
    if (spec.type == '\0' && value.is_float()) text.digits = plain_float(value.real());
    const auto size = static_cast<std::int64_t>(text.sign.size() + text.prefix.size() + text.digits.size());
    if (spec.align == '=' && size < spec.width) {
      if (spec.grouping != '\0') raise("format wants no zeros in front of grouped digits");
      text.digits = padded(text.digits, spec.fill, spec.width - size, 0, interpreter_.budget());
    }
    return aligned(spec, text.sign + text.prefix + text.digits, spec.align == '\0' ? '>' : spec.align);
  }

  static std::string plain_float(double value) {
    std::string text = float_text(value);
    if (text.starts_with('-')) text.erase(0, 1);
    return text;
  }

  Interpreter& interpreter_;
  const bool markup_;
  const Arguments& arguments_;
  std::size_t next_ = 0;
  bool automatic_ = false, manual_ = false;
};

}  // namespace

Value format_braces(Interpreter& interpreter, const Value& format, const Arguments& arguments) {
  interpreter.budget().spend(1 + format.bytes().size() / 8);
  return interpreter.text(BraceFormat(interpreter, format, arguments).run(format.bytes()),
                          format.is_markup());
}

}  // namespace nemocube::jinja
