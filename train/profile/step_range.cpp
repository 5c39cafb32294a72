#include "train/profile/step_range.h"

#include <charconv>
#include <optional>
#include <string_view>

#include "core/error.h"
#include "core/quote.h"

namespace nemocube {
namespace {

std::optional<std::int64_t> step_number(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

}  // namespace

StepRange parse_step_range(const std::string& text) {
  constexpr std::string_view key = "steps=";
  const std::string_view all = text;
  const std::string_view range = all.starts_with(key) ? all.substr(key.size()) : "";
  const std::size_t dash = range.find('-');
  const auto first = step_number(range.substr(0, dash));
  const auto last = dash == range.npos ? std::nullopt : step_number(range.substr(dash + 1));
  require(first && last,
          "--profile: want steps=A-B, the numbers of the first and the last step (from 0), got ",
          quote(text));
  require(*first <= *last, "--profile ", text, ": the first step ", *first, " is behind the last one, ",
          *last);
  return {*first, *last};
}

std::string to_string(const StepRange& range) { return cat(range.first, "-", range.last); }

}  // namespace nemocube
