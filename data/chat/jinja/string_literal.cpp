#include "data/chat/jinja/string_literal.h"

#include "data/chat/jinja/numbers.h"
#include "data/chat/jinja/text.h"

namespace nemocube::jinja {

namespace {

class Unescape {
 public:
  Unescape(const Source& source, std::size_t offset, std::string_view body)
      : source_(source), offset_(offset), body_(body) {}

  std::string run() {
    while (at_ < body_.size()) {
      if (body_[at_] != '\\')
        out_ += body_[at_++];
      else
        read_escape();
    }
    return std::move(out_);
  }

 private:
  void read_escape() {
    static constexpr std::string_view letters = "\\'\"abfnrtv", values = "\\'\"\a\b\f\n\r\t\v";
    const char letter = body_[at_ + 1];  // the lexer lets no text end in an open escape
    if (letter == '\n') {
      at_ += 2;
    } else if (const auto known = letters.find(letter); known != std::string_view::npos) {
      out_ += values[known];
      at_ += 2;
    } else if (letter >= '0' && letter <= '7') {
      read_octal();
    } else if (letter == 'x' || letter == 'u' || letter == 'U') {
      read_hexadecimal(letter == 'x' ? 2 : letter == 'u' ? 4 : 8);
    } else if (letter == 'N') {
      source_.fail(offset_ + at_, "want \\u and four digits, got \\N, which this build does not have");
    } else if (static_cast<unsigned char>(letter) >= 0x80) {
      read_beyond_ascii();
    } else {
      out_ += '\\';
      ++at_;
    }
  }

  void read_octal() {
    unsigned value = 0;
    std::size_t end = at_ + 1;
    for (; end < body_.size() && end < at_ + 4 && body_[end] >= '0' && body_[end] <= '7'; ++end)
      value = value * 8 + static_cast<unsigned>(body_[end] - '0');
    append_utf8(out_, value);
    at_ = end;
  }

  void read_hexadecimal(std::size_t digits) {
    std::uint32_t value = 0;
    for (std::size_t i = at_ + 2; i < at_ + 2 + digits; ++i) {
      const int digit = i < body_.size() ? digit_value(body_[i]) : 99;
      if (digit >= 16)
        source_.fail(offset_ + at_, "want ", digits, " hexadecimal digits behind \\", body_[at_ + 1]);
      value = value * 16 + static_cast<std::uint32_t>(digit);
    }
    if (value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
      source_.fail(offset_ + at_, "want the number of a character behind \\", body_[at_ + 1],
                   ", got half of a surrogate pair or more than 10ffff");
    append_utf8(out_, value);
    at_ += 2 + digits;
  }

  /// Jinja writes characters beyond ASCII as escapes before it reads the escapes, so that the backslash
  /// before such a character escapes the backslash of its escape.
  void read_beyond_ascii() {
    const Utf8Step step = utf8_step(body_, at_ + 1);
    append_escape(out_, step.character);
    at_ += 1 + step.length;
  }

  const Source& source_;
  const std::size_t offset_;
  const std::string_view body_;
  std::size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string string_literal(const Source& source, std::size_t offset, std::string_view body) {
  return Unescape(source, offset, body).run();
}

}  // namespace nemocube::jinja
