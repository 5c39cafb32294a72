#include <algorithm>

#include "core/quote.h"
#include "data/chat/jinja/arguments.h"
#include "data/chat/jinja/formatting.h"
#include "data/chat/jinja/numbers.h"
#include "data/chat/jinja/printing.h"
#include "data/chat/jinja/text.h"

namespace nemocube::jinja {

namespace {

class PercentFormat {
 public:
  PercentFormat(Interpreter& interpreter, const Value& format, const Value& values)
      : interpreter_(interpreter), format_(format.bytes()), markup_(format.is_markup()), values_(values) {}

  Value run() {
    while (at_ < format_.size()) {
      const std::size_t percent = std::min(format_.find('%', at_), format_.size());
      out_ += format_.substr(at_, percent - at_);
      at_ = percent;
      if (at_ < format_.size()) field();
      interpreter_.budget().check_text(out_.size());
    }
    // Values with keys or places may be left over.
    const bool one = !values_.is_undefined() && !values_.is_tuple() && !values_.is_mapping() &&
                     !values_.is_list() && !values_.as<Range>();
    const std::size_t given = values_.is_tuple() ? values_.items()->values.size() : one ? 1 : 0;
    if (!by_name_ && used_ < given) raise("% wants a field for each value, got ", used_, " for ", given);
    return interpreter_.text(std::move(out_), markup_);
  }

 private:
  struct Field {
    bool left = false, zero = false, alternate = false;
    char sign = '-';
    std::int64_t width = 0, precision = -1;
  };

  char peek() const {
    if (at_ >= format_.size()) raise("% wants the type of a field at the end of the format");
    return format_[at_];
  }

  const Value& next_value() {
    if (values_.is_tuple()) {
      const auto& values = values_.items()->values;
      if (used_ >= values.size()) raise("% wants a value for each field, got ", values.size());
      return values[used_++];
    }
    if (used_++ > 0) raise("% wants a value for each field, got one");
    return values_;
  }

  Value named_value() {
    ++at_;
    int depth = 1;
    const std::size_t begin = at_;
    for (; at_ < format_.size() && depth > 0; ++at_)
      depth += format_[at_] == '(' ? 1 : format_[at_] == ')' ? -1 : 0;
    if (depth > 0) raise("% wants ) behind the name of a field");
    const std::string name = format_.substr(begin, at_ - 1 - begin);
    if (!values_.is_mapping())
      raise("% wants a mapping for the field ", quote(name), ", got ", kind_of(values_));
    const Value* found = values_.mapping().find(Value(name), interpreter_.budget());
    if (!found) raise("% wants the key ", quote(name), " in the mapping");
    by_name_ = true;
    return *found;
  }

  std::int64_t number() {
    if (peek() == '*') {
      ++at_;
      const Value& value = next_value();
      if (!value.is_integral()) raise("% wants an integer for *, got ", kind_of(value));
      return clamped(value.integer());
    }
    std::int64_t value = 0;
    for (; peek() >= '0' && peek() <= '9'; ++at_) {
      value = value * 10 + (peek() - '0');
      if (value > 1'000'000'000) raise("% wants a smaller width or precision");
    }
    return value;
  }

  void field() {
    ++at_;
    std::optional<Value> named;
    if (peek() == '(') named = named_value();
    Field field;
    flags(field);
    field.width = number();
    if (field.width < 0) {
      field.left = true;
      field.width = -field.width;
    }
    if (peek() == '.') {
      ++at_;
      field.precision = std::max<std::int64_t>(number(), 0);
    }
    while (peek() == 'l' || peek() == 'h' || peek() == 'L') ++at_;
    const char type = peek();
    ++at_;
    if (type == '%') {
      out_ += '%';
      return;
    }
    write(field, type, named ? *named : next_value());
  }

  void flags(Field& field) {
    for (;; ++at_) {
      switch (peek()) {
        case '-':
          field.left = true;
          continue;
        case '0':
          field.zero = true;
          continue;
        case '#':
          field.alternate = true;
          continue;
        case '+':
          field.sign = '+';
          continue;
        case ' ':
          if (field.sign != '+') field.sign = ' ';
          continue;
        default:
          return;
      }
    }
  }

  void write(const Field& field, char type, const Value& value) {
    Budget& budget = interpreter_.budget();
    if (type == 's' || type == 'r' || type == 'a') {
      std::string text = type == 's' ? interpreter_.to_text(value) : to_repr(value, budget);
      if (type == 'a' && length_of(text) != text.size()) raise("%a is not in this build beyond ASCII");
      if (markup_ && !(type == 's' && value.is_markup())) text = escape_markup(text, budget);
      if (field.precision >= 0)
        text = text.substr(0, byte_at(Value(text).text(), static_cast<std::size_t>(field.precision)));
      return pad(field, "", text);
    }
    if (type == 'c') return pad(field, "", character(value));
    NumberStyle style;
    style.type = type == 'i' || type == 'u' ? 'd' : type;
    if (std::string_view("dxXoeEfFgG").find(style.type) == std::string_view::npos)
      raise("% wants one of the types s, r, d, i, u, x, o, c, e, f and g, got ", quote(std::string(1, type)));
    style.alternate = field.alternate;
    style.sign = field.sign;
    const bool real = std::string_view("eEfFgG").find(style.type) != std::string_view::npos;
    if (real) style.precision = static_cast<int>(std::min<std::int64_t>(field.precision, 1'000'000));
    NumberText text = number_text(whole_number(value, style.type, real), style);
    if (!real && field.precision > static_cast<std::int64_t>(text.digits.size()))
      text.digits = padded(text.digits, "0", field.precision - static_cast<std::int64_t>(text.digits.size()),
                           0, budget);
    const auto size = static_cast<std::int64_t>(text.sign.size() + text.prefix.size() + text.digits.size());
    if (field.zero && !field.left && size < field.width)
      text.digits = padded(text.digits, "0", field.width - size, 0, budget);
    pad(field, text.sign + text.prefix, text.digits);
  }

  Value whole_number(const Value& value, char type, bool real) {
    if (!value.is_number() || (type != 'd' && !real && value.is_float()))
      raise("%", type, " wants ", real || type == 'd' ? "a number" : "an integer", ", got ", kind_of(value));
    if (real || value.is_integral()) return value;
    const auto integer = integer_of(value.real());
    if (!integer) raise("%d wants a number, got nan");
    return *integer;
  }

  std::string character(const Value& value) {
    if (value.is_text() && value.text().length == 1)
      return markup_ ? escape_markup(value.bytes(), interpreter_.budget()) : value.bytes();
    const Integer number = value.is_integral() ? value.integer() : -1;
    if (number < 0 || number > 0x10ffff || (number >= 0xd800 && number < 0xe000))
      raise("%c wants a character or its number, got ", kind_of(value));
    std::string out;
    append_utf8(out, static_cast<char32_t>(number));
    return out;
  }

  void pad(const Field& field, const std::string& head, const std::string& text) {
    const std::string whole = head + text;
    const std::int64_t blanks = field.width - static_cast<std::int64_t>(length_of(whole));
    out_ += padded(whole, " ", field.left ? 0 : blanks, field.left ? blanks : 0, interpreter_.budget());
  }

  Interpreter& interpreter_;
  const std::string format_;
  const bool markup_;
  const Value& values_;
  std::size_t at_ = 0, used_ = 0;
  bool by_name_ = false;
  std::string out_;
};

}  // namespace

Value format_percent(Interpreter& interpreter, const Value& format, const Value& values) {
  return PercentFormat(interpreter, format, values).run();
}

}  // namespace nemocube::jinja
