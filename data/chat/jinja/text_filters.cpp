#include <algorithm>

#include "data/chat/jinja/arguments.h"
#include "data/chat/jinja/filters.h"
#include "data/chat/jinja/formatting.h"
#include "data/chat/jinja/letters.h"
#include "data/chat/jinja/methods.h"
#include "data/chat/jinja/printing.h"
#include "data/chat/jinja/text.h"

namespace nemocube::jinja {

namespace {

/// MarkupSafe's soft_str: a text stays as it is, anything else becomes one.
Value soft_text(Interpreter& interpreter, const Value& value) {
  return value.is_text() ? value : interpreter.text(interpreter.to_text(value));
}

/// The filter that calls a method of texts.
Value by_method(Interpreter& interpreter, const Value& value, std::string_view method,
                Arguments arguments = {}) {
  return find_text_method(method)->call(interpreter, soft_text(interpreter, value), arguments);
}

Value upper(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  bind("upper", arguments, {});
  return by_method(interpreter, value, "upper");
}

Value lower(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  bind("lower", arguments, {});
  return by_method(interpreter, value, "lower");
}

Value capitalize(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  bind("capitalize", arguments, {});
  return by_method(interpreter, value, "capitalize");
}

Value trim(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound = bind("trim", arguments, {"chars"});
  return by_method(interpreter, value, "strip", {{bound.value(0, Value())}, {}});
}

Value center(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound = bind("center", arguments, {"width"});
  return by_method(interpreter, value, "center", {{bound.value(0, Value(80))}, {}});
}

/// First letters of words in upper case, the rest in lower case; words begin behind - ( { [ < and white
/// space.
Value title(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  bind("title", arguments, {});
  const std::string text = soft_text(interpreter, value).bytes();
  interpreter.budget().spend(text.size());
  std::string out, rest;
  bool begins = true;
  const auto flush = [&] {
    out += lower_case(rest);
    rest.clear();
  };
  bool in_separator = false;
  for_each_character(text, [&](char32_t character, std::string_view bytes) {
    const bool separates =
        is_space(character) || std::u32string_view(U"-({[<").find(character) != std::u32string_view::npos;
    if (separates != in_separator) {
      flush();
      begins = true;
      in_separator = separates;
    }
    if (begins)
      out += upper_case(bytes);
    else
      rest += bytes;
    begins = false;
  });
  flush();
  return interpreter.text(std::move(out));
}

Value string(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  bind("string", arguments, {});
  return soft_text(interpreter, value);
}

Value safe(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  bind("safe", arguments, {});
  return interpreter.text(interpreter.to_text(value), true);
}

Value escape(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  bind("escape", arguments, {});
  if (value.is_markup()) return value;
  return interpreter.text(escape_markup(interpreter.to_text(value), interpreter.budget()), true);
}

Value force_escape(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  bind("forceescape", arguments, {});
  return interpreter.text(escape_markup(interpreter.to_text(value), interpreter.budget()), true);
}

Value replace_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound = bind("replace", arguments, {"old", "new", "count"}, 2);
  const std::int64_t most = bound.has(2) && !bound[2].is_none() ? bound.integer(2) : -1;
  return interpreter.text(replace(interpreter.to_text(value), interpreter.to_text(bound[0]),
                                  interpreter.to_text(bound[1]), most, interpreter.budget()));
}

Value indent(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound = bind("indent", arguments, {"width", "first", "blank"});
  if (value.is_undefined()) refuse_undefined(value);
  if (!value.is_text()) raise("indent wants a text, got ", kind_of(value));
  std::string indention;
  if (bound.has(0) && bound[0].is_text())
    indention = bound[0].bytes();
  else
    indention = padded("", " ", bound.integer(0, 4), 0, interpreter.budget());
  std::string out;
  const std::string text = value.bytes() + "\n";
  bool first = true;
  for_each_line(text, false, [&](std::string_view line) {
    if (!first) out += '\n';
    if (!first && (bound.flag(2, false) || !line.empty())) out += indention;
    out += line;
    first = false;
    interpreter.budget().check_text(out.size());
  });
  if (bound.flag(1, false)) out = indention + out;
  return interpreter.text(std::move(out), value.is_markup());
}

Value truncate(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound = bind("truncate", arguments, {"length", "killwords", "end", "leeway"});
  const auto size = size_of(value);
  if (!size) raise("truncate wants a text, got ", kind_of(value));
  const Value end = bound.value(2, Value("..."));
  if (!end.is_text()) raise("truncate wants a text as end, got ", kind_of(end));
  const std::int64_t length = bound.integer(0, 255),
                     leeway = bound.has(3) && !bound[3].is_none() ? bound.integer(3) : 5;
  const auto end_length = static_cast<std::int64_t>(end.text().length);
  if (length < end_length) raise("truncate wants a length of at least ", end_length, ", got ", length);
  if (leeway < 0) raise("truncate wants a leeway of at least 0, got ", leeway);
  if (static_cast<std::int64_t>(*size) - leeway <= length) return value;
  if (!value.is_text()) raise("truncate wants a text, got ", kind_of(value));
  const Text& text = value.text();
  std::string kept = text.bytes.substr(0, byte_at(text, static_cast<std::size_t>(length - end_length)));
  if (!bound.flag(1, false)) kept = kept.substr(0, std::min(kept.rfind(' '), kept.size()));
  return interpreter.binary(Operator::add, interpreter.text(std::move(kept), value.is_markup()), end);
}

Value wordcount(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  bind("wordcount", arguments, {});
  std::int64_t words = 0;
  bool inside = false;
  const Value text = soft_text(interpreter, value);
  interpreter.budget().spend(text.bytes().size());
  for_each_character(text.bytes(), [&](char32_t character, std::string_view bytes) {
    const bool word = character == U'_' || is_alphanumeric(bytes);
    words += word && !inside;
    inside = word;
  });
  return Value(words);
}

Value format_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty())
    raise("format wants values with names or values without, got both");
  Value values;
  if (arguments.named.empty()) {
    values = make_tuple(arguments.positional, interpreter.budget());
  } else {
    Mapping mapping;
    for (const auto& [name, one] : arguments.named) mapping.set(Value(name), one, interpreter.budget());
    values = make_mapping(std::move(mapping));
  }
  return format_percent(interpreter, soft_text(interpreter, value), values);
}

std::string quoted_for_url(std::string_view text, bool query) {
  static constexpr std::string_view hex = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain =
        byte < 0x80 && ((byte >= '0' && byte <= '9') || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'z') ||
                        std::string_view("_.-~").find(c) != std::string_view::npos);
    if (plain || (c == '/' && !query))
      out += c;
    else if (c == ' ' && query)
      out += '+';
    else
      ((out += '%') += hex[byte >> 4]) += hex[byte & 15];
  }
  return out;
}

Value urlencode(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  bind("urlencode", arguments, {});
  const auto quoted = [&](const Value& part, bool query) {
    return quoted_for_url(interpreter.to_text(part), query);
  };
  if (value.is_text() || !interpreter.is_iterable(value)) return interpreter.text(quoted(value, false));
  std::string out;
  const auto add = [&](const Value& key, const Value& one) {
    out += cat(out.empty() ? "" : "&", quoted(key, true), "=", quoted(one, true));
    interpreter.budget().check_text(out.size());
  };
  if (value.is_mapping()) {
    for (const auto& [key, one] : value.mapping().entries()) add(key, one);
  } else {
    for (const Value& pair : interpreter.collect(value)) {
      const auto both = interpreter.collect(pair);
      if (both.size() != 2) raise("urlencode wants pairs of a key and a value");
      add(both[0], both[1]);
    }
  }
  return interpreter.text(std::move(out));
}

Value tojson(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Bound bound = bind("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = bound.flag(0, false);
  if (bound.has(1) && !bound[1].is_none()) {
    style.indent =
        bound[1].is_text() ? bound[1].bytes() : padded("", " ", bound.integer(1), 0, interpreter.budget());
    style.item_separator = ",";
  }
  if (bound.has(2) && !bound[2].is_none()) {
    const auto both = interpreter.collect(bound[2]);
    if (both.size() != 2 || !both[0].is_text() || !both[1].is_text())
      raise("tojson wants two texts as separators");
    style.item_separator = both[0].bytes();
    style.key_separator = both[1].bytes();
  }
  style.sort_keys = bound.flag(3, false);
  return interpreter.text(to_json(value, style, interpreter.budget()));
}

}  // namespace

void add_text_filters(FilterTable& table) {
  table["capitalize"] = capitalize;
  table["center"] = center;
  table["e"] = table["escape"] = escape;
  table["forceescape"] = force_escape;
  table["format"] = format_filter;
  table["indent"] = indent;
  table["lower"] = lower;
  table["replace"] = replace_filter;
  table["safe"] = safe;
  table["string"] = string;
  table["title"] = title;
  table["tojson"] = tojson;
  table["trim"] = trim;
  table["truncate"] = truncate;
  table["upper"] = upper;
  table["urlencode"] = urlencode;
  table["wordcount"] = wordcount;
}

}  // namespace nemocube::jinja
