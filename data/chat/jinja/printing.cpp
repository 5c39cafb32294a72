#include "data/chat/jinja/printing.h"

#include "data/chat/jinja/letters.h"
#include "data/chat/jinja/numbers.h"
#include "data/chat/jinja/objects.h"
#include "data/chat/jinja/text.h"

namespace nemocube::jinja {

namespace {

void append_text_repr(std::string& out, std::string_view text, Budget& budget) {
  const bool double_quotes =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = double_quotes ? '"' : '\'';
  out += quote;
  for_each_character(text, [&](char32_t character, std::string_view bytes) {
    budget.check_text(out.size());
    if (character == static_cast<unsigned char>(quote) || character == U'\\')
      (out += '\\') += bytes;
    else if (character == U'\n')
      out += "\\n";
    else if (character == U'\r')
      out += "\\r";
    else if (character == U'\t')
      out += "\\t";
    else if (is_printable(character))
      out += bytes;
    else
      append_escape(out, character);
  });
  out += quote;
}

void append_items(std::string& out, const std::vector<Value>& values, Budget& budget) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(out, values[i], budget);
  }
}

void append_mapping(std::string& out, const Mapping& mapping, Budget& budget) {
  out += '{';
  bool first = true;
  for (const auto& [key, value] : mapping.entries()) {
    if (!first) out += ", ";
    first = false;
    append_repr(out, key, budget);
    out += ": ";
    append_repr(out, value, budget);
  }
  out += '}';
}

void append_object(std::string& out, const Value& value, Budget& budget) {
  if (const auto* range = value.as<Range>()) {
    out += cat("range(", integer_text(range->start), ", ", integer_text(range->stop));
    if (range->step != 1) out += ", " + integer_text(range->step);
    out += ')';
  } else if (const auto* view = value.as<View>()) {
    out += cat(view->type_name(), "([");
    std::vector<Value> values;
    for (std::size_t i = 0; i < view->mapping->size(); ++i) values.push_back(view->at(i, budget));
    append_items(out, values, budget);
    out += "])";
  } else if (const auto* space = value.as<Namespace>()) {
    out += "<Namespace ";
    append_mapping(out, space->attributes, budget);
    out += '>';
  } else if (auto* loop = value.as<Loop>()) {
    out += cat("<LoopContext ", loop->index0 + 1, "/", loop->length(), ">");
  } else if (const auto* function = value.as<Function>(); function && function->macro) {
    out += "<Macro ";
    append_text_repr(out, function->name, budget);
    out += '>';
  } else {
    raise("want a value to print, got ", kind_of(value),
          " (filters such as map and select want '| list' behind them)");
  }
}

}  // namespace

void append_repr(std::string& out, const Value& value, Budget& budget) {
  const Budget::Level level(budget);
  budget.spend();
  budget.check_text(out.size());
  if (value.is_undefined() || value.is_missing()) {
    out += "Undefined";
  } else if (value.is_none()) {
    out += "None";
  } else if (value.is_bool()) {
    out += value.boolean() ? "True" : "False";
  } else if (value.is_integral()) {
    out += integer_text(value.integer());
  } else if (value.is_float()) {
    out += float_text(value.real());
  } else if (value.is_text()) {
    budget.spend_text(value.bytes().size());
    if (!value.text().ascii()) budget.spend(value.bytes().size());  // a look at each character
    if (value.is_markup()) out += "Markup(";
    append_text_repr(out, value.bytes(), budget);
    if (value.is_markup()) out += ')';
  } else if (value.is_list()) {
    out += '[';
    append_items(out, value.items()->values, budget);
    out += ']';
  } else if (value.is_tuple()) {
    out += '(';
    append_items(out, value.items()->values, budget);
    out += value.items()->values.size() == 1 ? ",)" : ")";
  } else if (value.is_mapping()) {
    append_mapping(out, value.mapping(), budget);
  } else {
    append_object(out, value, budget);
  }
}

std::string to_repr(const Value& value, Budget& budget) {
  std::string out;
  append_repr(out, value, budget);
  budget.spend_text(out.size());
  return out;
}

std::string to_text(const Value& value, Budget& budget) {
  if (value.is_text()) {
    budget.spend_text(value.bytes().size());
    return value.bytes();
  }
  return value.is_undefined() || value.is_missing() ? "" : to_repr(value, budget);
}

}  // namespace nemocube::jinja
