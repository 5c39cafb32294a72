#include "train/profile/trace_text.h"

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "data/json/json.h"

namespace nemocube {
namespace {

std::int32_t thread_of(trace::Row row) { return row + 1; }

std::string json_text(const std::string& text) { return dump_json(Json(text), -1); }

void append_number(std::string& to, double number) {
  std::array<char, 32> text{};
  to.append(text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr);
}

/// Nanoseconds, 0 or more, as microseconds with three decimals.
void append_microseconds(std::string& to, std::int64_t nanoseconds) {
  const std::string part = std::to_string(1000 + nanoseconds % 1000);
  to += std::to_string(nanoseconds / 1000);
  to += '.';
  to.append(part, 1);
}

}  // namespace

std::string TraceText::metadata(const char* name, trace::Row row, const std::string& arguments) const {
  return cat(",\n{\"name\":\"", name, "\",\"ph\":\"M\",\"pid\":", rank_, ",\"tid\":", thread_of(row),
             ",\"ts\":0,\"args\":{", arguments, "}}");
}

std::string TraceText::names(const std::string& process, const std::map<trace::Row, std::string>& rows) {
  std::string text = metadata("process_name", trace::compute_row, cat("\"name\":", json_text(process))) +
                     metadata("process_sort_index", trace::compute_row, cat("\"sort_index\":", rank_));
  for (const auto& [row, name] : rows)
    text += metadata("thread_name", row, cat("\"name\":", json_text(name))) +
            metadata("thread_sort_index", row, cat("\"sort_index\":", row));
  return text;
}

const std::string& TraceText::quoted_text(const char* text) {
  std::string& quoted = quoted_[text];
  if (quoted.empty()) quoted = json_text(text);
  return quoted;
}

void TraceText::append(std::string& to, const trace::Event& event) {
  // Both ends go through one function that keeps their order, so that events stay within each other.
  const std::int64_t begin = clock_.on_rank_0(event.begin) - origin_,
                     end = clock_.on_rank_0(event.begin + event.duration) - origin_;
  to += ",\n{\"name\":";
  to += quoted_text(event.name);
  to += ",\"cat\":\"";
  to += trace::name_of(event.category);
  to += "\",\"ph\":\"X\",\"pid\":";
  to += std::to_string(rank_);
  to += ",\"tid\":";
  to += std::to_string(thread_of(event.row));
  to += ",\"ts\":";
  append_microseconds(to, begin);
  to += ",\"dur\":";
  append_microseconds(to, end - begin);
  const char* before = ",\"args\":{\"";
  for (const trace::Argument& argument : event.arguments) {
    if (!argument.key) break;
    to += before;
    to += argument.key;
    to += "\":";
    if (const auto* integer = std::get_if<std::int64_t>(&argument.value))
      to += std::to_string(*integer);
    else if (const auto* number = std::get_if<double>(&argument.value))
      append_number(to, *number);
    else
      to += quoted_text(std::get<const char*>(argument.value));
    before = ",\"";
  }
  to += event.arguments[0].key ? "}}" : "}";
}

}  // namespace nemocube
