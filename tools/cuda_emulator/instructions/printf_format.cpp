#include "instructions/printf_format.h"

#include <cstdint>
#include <cstdio>

namespace emulator {
namespace {

/// Takes arguments from the buffer in order.
class Reader {
 public:
  explicit Reader(const PrintfArguments& arguments) : arguments_(arguments) {}
  template <class T>
  bool take(T& value) {
    at_ = (at_ + sizeof(T) - 1) / sizeof(T) * sizeof(T);
    const bool done = arguments_.buffer(at_, &value, sizeof(T));
    at_ += sizeof(T);
    ++count_;
    return done;
  }
  std::size_t count() const { return count_; }

 private:
  const PrintfArguments& arguments_;
  std::size_t at_ = 0, count_ = 0;
};

template <class T>
std::string formatted(const std::string& conversion, T value) {
  const int length = std::snprintf(nullptr, 0, conversion.c_str(), value);
  std::string text(static_cast<std::size_t>(std::max(length, 0)) + 1, '\0');
  std::snprintf(text.data(), text.size(), conversion.c_str(), value);
  text.pop_back();
  return text;
}

constexpr std::string_view flags = "-+ #0", digits = "0123456789", lengths = "hlzjt";

}  // namespace

std::optional<std::string> format_printf(std::string_view format, const PrintfArguments& arguments,
                                         std::size_t& argument_count) {
  Reader reader(arguments);
  std::string text;
  std::size_t at = 0;
  const auto next_is = [&](std::string_view set) {
    return at < format.size() && set.find(format[at]) != set.npos;
  };
  while (at < format.size()) {
    if (format[at] != '%') {
      text += format[at++];
      continue;
    }
    ++at;
    if (next_is("%")) {
      text += '%';
      ++at;
      continue;
    }
    std::string conversion = "%";
    while (next_is(flags)) conversion += format[at++];
    // Width and precision: digits, or an int argument for "*".
    const auto take_number = [&] {
      if (next_is("*")) {
        ++at;
        std::int32_t value = 0;
        if (!reader.take(value)) return false;
        conversion += std::to_string(value);
      }
      while (next_is(digits)) conversion += format[at++];
      return true;
    };
    if (!take_number()) return std::nullopt;
    if (next_is(".")) {
      conversion += format[at++];
      const std::size_t before = conversion.size();
      if (!take_number()) return std::nullopt;
      // A negative precision counts as none.
      if (conversion.size() > before && conversion[before] == '-') conversion.resize(before - 1);
    }
    std::string length;
    while (next_is(lengths)) length += format[at++];
    if (at == format.size()) return std::nullopt;
    const char kind = format[at++];
    switch (kind) {
      case 'd':
      case 'i':
      case 'u':
      case 'o':
      case 'x':
      case 'X':
        if (length == "l" || length == "ll" || length == "z" || length == "j" || length == "t") {
          std::uint64_t value = 0;
          if (!reader.take(value)) return std::nullopt;
          text += formatted(conversion + "ll" + kind, static_cast<unsigned long long>(value));
        } else {
          std::uint32_t value = 0;
          if (!reader.take(value)) return std::nullopt;
          text += formatted(conversion + length + kind, value);
        }
        break;
      case 'c': {
        std::int32_t value = 0;
        if (!reader.take(value)) return std::nullopt;
        text += formatted(conversion + kind, value);
        break;
      }
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
      case 'a':
      case 'A': {
        double value = 0;
        if (!reader.take(value)) return std::nullopt;
        text += formatted(conversion + kind, value);
        break;
      }
      case 'p': {
        std::uint64_t value = 0;
        if (!reader.take(value)) return std::nullopt;
        text += formatted(conversion + kind, reinterpret_cast<const void*>(value));
        break;
      }
      case 's': {
        std::uint64_t address = 0;
        if (!reader.take(address)) return std::nullopt;
        const std::optional<std::string> value = arguments.string(address);
        if (!value) return std::nullopt;
        text += formatted(conversion + kind, value->c_str());
        break;
      }
      default:
        return std::nullopt;
    }
  }
  argument_count = reader.count();
  return text;
}

}  // namespace emulator
