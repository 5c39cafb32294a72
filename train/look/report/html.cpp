#include "train/look/report/html.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "core/quote.h"

namespace nemocube::run_report {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  return out;
}

std::string exact(double value) {
  std::array<char, 40> buffer;
  return {buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr};
}

std::string readable(double value) {
  std::array<char, 40> buffer;
  std::snprintf(buffer.data(), buffer.size(),
                std::abs(value) >= 1e5 && std::abs(value) < 1e15 ? "%.0f" : "%.6g", value);
  return buffer.data();
}

std::string readable_time(const std::string& timestamp) {
  constexpr std::string_view form = "0000-00-00T00:00:00.000Z";
  const auto fits = [&](std::size_t i) {
    return form[i] == '0' ? timestamp[i] >= '0' && timestamp[i] <= '9' : timestamp[i] == form[i];
  };
  if (timestamp.size() != form.size()) return timestamp;
  for (std::size_t i = 0; i < form.size(); ++i)
    if (!fits(i)) return timestamp;
  return timestamp.substr(0, 10) + " " + timestamp.substr(11, 8) + " UTC";
}

std::string coordinate(double value) {
  std::array<char, 40> buffer;
  std::snprintf(buffer.data(), buffer.size(), "%.2f", value);
  std::string text = buffer.data();
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

}  // namespace nemocube::run_report
