#pragma once
#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

/// Looks into the HTML page of `nemocube report`.
namespace nemocube::testing {

namespace page_detail {

inline bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == ':';
}

/// What is wrong with characters outside tags and in values of attributes; empty: nothing.
inline std::string fault_of_text(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (std::iscntrl(static_cast<unsigned char>(text[i])) != 0 && text[i] != '\n')
      return "a control character";
    if (text[i] != '&') continue;
    const std::string_view rest = text.substr(i);
    if (std::ranges::none_of(std::vector<std::string_view>{"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"},
                             [&](std::string_view entity) { return rest.starts_with(entity); }))
      return "a stray & before " + std::string(rest.substr(0, 40));
  }
  return "";
}

/// Attributes of a tag, " a=\"b\" c=\"d\"", to a set of ids. Returns what is wrong.
inline std::string fault_of_attributes(std::string_view text, std::set<std::string>& ids) {
  while (!text.empty()) {
    std::size_t end = 1;
    while (end < text.size() && is_word(text[end])) ++end;
    const std::string_view name = text.substr(1, end - 1);
    if (text[0] != ' ' || name.empty() || !text.substr(end).starts_with("=\""))
      return "no attribute: " + std::string(text.substr(0, 40));
    const std::size_t close = text.find('"', end + 2);
    if (close == text.npos) return "an attribute without end";
    const std::string_view value = text.substr(end + 2, close - end - 2);
    if (const std::string fault = fault_of_text(value); !fault.empty()) return fault;
    if (name == "id" && !ids.emplace(value).second) return "id twice: " + std::string(value);
    text.remove_prefix(close + 1);
  }
  return "";
}

}  // namespace page_detail

/// What is not well-formed in a page that is also XML below its first line: tags that do not match,
/// attributes without quotes, characters < and & that are no markup, ids that come twice. Empty where nothing
/// is.
inline std::string fault_of_page(std::string_view page) {
  constexpr std::string_view doctype = "<!DOCTYPE html>\n";
  if (!page.starts_with(doctype)) return "no doctype";
  page.remove_prefix(doctype.size());
  std::vector<std::string> open;
  std::set<std::string> ids;
  while (!page.empty()) {
    const std::size_t begin = std::min(page.find('<'), page.size());
    if (const std::string fault = page_detail::fault_of_text(page.substr(0, begin)); !fault.empty())
      return fault;
    page.remove_prefix(begin);
    if (page.empty()) break;
    const std::size_t end = page.find('>');
    if (end == page.npos) return "a tag without end";
    std::string_view tag = page.substr(1, end - 1);
    page.remove_prefix(end + 1);
    const bool closes = tag.starts_with('/'), alone = tag.ends_with('/');
    if (closes) tag.remove_prefix(1);
    if (alone) tag.remove_suffix(1);
    std::size_t length = 0;
    while (length < tag.size() && page_detail::is_word(tag[length])) ++length;
    const std::string name(tag.substr(0, length));
    if (name.empty() || (closes && (alone || length < tag.size())))
      return "no tag: " + std::string(tag.substr(0, 40));
    if (const std::string fault = page_detail::fault_of_attributes(tag.substr(length), ids); !fault.empty())
      return fault;
    if (closes) {
      if (open.empty() || open.back() != name) return "unexpected </" + name + ">";
      open.pop_back();
    } else if (!alone) {
      open.push_back(name);
    }
    if (open.empty() && page.find_first_not_of('\n') != page.npos) return "text after the end";
  }
  return open.empty() ? "" : "never closed: " + open.back();
}

/// The element with this id, up to the first end tag of its kind; empty where there is none.
inline std::string element_of(const std::string& page, const std::string& id) {
  const std::size_t at = page.find(" id=\"" + id + "\"");
  if (at == page.npos) return "";
  const std::size_t begin = page.rfind('<', at);
  const std::string end = "</" + page.substr(begin + 1, page.find(' ', begin) - begin - 1) + ">";
  return page.substr(begin, page.find(end, at) + end.size() - begin);
}

/// The values of an attribute that holds numbers, in their order.
inline std::vector<double> numbers_of(const std::string& text, const std::string& attribute) {
  const std::string mark = " " + attribute + "=\"";
  std::vector<double> values;
  for (std::size_t at = text.find(mark); at != text.npos; at = text.find(mark, at + 1))
    values.push_back(std::stod(text.substr(at + mark.size(), 40)));
  return values;
}

/// The points of a series in the chart with this id, x to y.
inline std::map<double, double> points_of(const std::string& page, const std::string& chart,
                                          const std::string& series) {
  const std::string figure = element_of(page, chart);
  const std::size_t begin = figure.find("data-series=\"" + series + "\"");
  if (begin == figure.npos) return {};
  const std::string group = figure.substr(begin, figure.find("</g>", begin) - begin);
  const auto xs = numbers_of(group, "data-x"), ys = numbers_of(group, "data-y");
  std::map<double, double> points;
  for (std::size_t i = 0; i < xs.size(); ++i) points[xs[i]] = ys.at(i);
  return points;
}

/// The exact values of the cells or parts of a chart, in their order.
inline std::vector<double> values_of(const std::string& page, const std::string& chart) {
  return numbers_of(element_of(page, chart), "data-value");
}

}  // namespace nemocube::testing
