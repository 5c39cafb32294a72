#include <algorithm>
#include <cmath>
#include <cstdio>

#include "data/chat/jinja/compare.h"
#include "data/chat/jinja/numbers.h"
#include "data/chat/jinja/printing.h"
#include "data/chat/jinja/text.h"

namespace nemocube::jinja {

namespace {

class JsonText {
 public:
  JsonText(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

  void append(const Value& value) {
    const Budget::Level level(budget_);
    budget_.spend();
    budget_.check_text(out.size());
    if (value.is_none() || value.is_number())
      out += scalar(value);
    else if (value.is_text())
      append_text(value.bytes());
    else if (const auto& items = value.items())
      append_list(*items);
    else if (value.is_mapping())
      append_mapping(value.mapping());
    else
      raise("tojson wants a value that JSON has, got ", kind_of(value));
  }

  std::string out;

 private:
  static std::string scalar(const Value& value) {
    if (value.is_none()) return "null";
    if (value.is_bool()) return value.boolean() ? "true" : "false";
    if (value.is_integral()) return integer_text(value.integer());
    const double real = value.real();
    if (std::isnan(real)) return "NaN";
    if (std::isinf(real)) return real < 0 ? "-Infinity" : "Infinity";
    return float_text(real);
  }

  void append_unit(unsigned unit) {
    char buffer[16];
    std::snprintf(buffer, sizeof buffer, "\\u%04x", unit);
    out += buffer;
  }

  void append_character(char32_t character, std::string_view bytes) {
    budget_.check_text(out.size());
    switch (character) {
      case U'"':
        out += "\\\"";
        return;
      case U'\\':
        out += "\\\\";
        return;
      case U'\n':
        out += "\\n";
        return;
      case U'\r':
        out += "\\r";
        return;
      case U'\t':
        out += "\\t";
        return;
      case U'\b':
        out += "\\b";
        return;
      case U'\f':
        out += "\\f";
        return;
      default:
        break;
    }
    const bool plain = character >= 0x20 && (!style_.ascii || character < 0x7f);
    if (plain) {
      out += bytes;
    } else if (character < 0x10000) {
      append_unit(static_cast<unsigned>(character));
    } else {
      append_unit(0xd800 + static_cast<unsigned>((character - 0x10000) >> 10));
      append_unit(0xdc00 + static_cast<unsigned>((character - 0x10000) & 0x3ff));
    }
  }

  void append_text(std::string_view text) {
    budget_.spend_text(text.size());
    out += '"';
    for_each_character(text, [this](char32_t c, std::string_view bytes) { append_character(c, bytes); });
    out += '"';
  }

  void begin_item(bool first) {
    if (!first) out += style_.item_separator;
    new_line();
  }

  void new_line() {
    if (!style_.indent) return;
    out += '\n';
    for (int i = 0; i < level_; ++i) out += *style_.indent;
    budget_.check_text(out.size());
  }

  void close(char bracket) {
    --level_;
    new_line();
    out += bracket;
  }

  void append_list(const Items& items) {
    if (items.values.empty()) {
      out += "[]";
      return;
    }
    out += '[';
    ++level_;
    for (std::size_t i = 0; i < items.values.size(); ++i) {
      begin_item(i == 0);
      append(items.values[i]);
    }
    close(']');
  }

  void append_mapping(const Mapping& mapping) {
    if (mapping.size() == 0) {
      out += "{}";
      return;
    }
    std::vector<const Mapping::Entry*> entries;
    for (const Mapping::Entry& entry : mapping.entries()) entries.push_back(&entry);
    if (style_.sort_keys)
      std::ranges::stable_sort(entries, [this](const Mapping::Entry* a, const Mapping::Entry* b) {
        return less(a->first, b->first, budget_);
      });
    out += '{';
    ++level_;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      begin_item(i == 0);
      append_key(entries[i]->first);
      out += style_.key_separator;
      append(entries[i]->second);
    }
    close('}');
  }

  void append_key(const Value& key) {
    if (key.is_text())
      append_text(key.bytes());
    else if (key.is_none() || key.is_number())
      append_text(scalar(key));
    else
      raise("tojson wants texts, numbers, booleans or None as keys, got ", kind_of(key));
  }

  const JsonStyle& style_;
  Budget& budget_;
  int level_ = 0;
};

}  // namespace

std::string to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonText text(style, budget);
  text.append(value);
  budget.spend_text(text.out.size());
  return std::move(text.out);
}

}  // namespace nemocube::jinja
