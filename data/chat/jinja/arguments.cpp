#include "data/chat/jinja/arguments.h"

#include <algorithm>
#include <limits>

#include "core/quote.h"

namespace nemocube::jinja {

const std::string& Bound::text(std::size_t i) const {
  const Value& value = *values_[i];
  if (!value.is_text()) raise(function_, " wants a text as argument ", i + 1, ", got ", kind_of(value));
  return value.bytes();
}

std::optional<std::string_view> Bound::text_or_none(std::size_t i) const {
  if (!has(i) || values_[i]->is_none()) return std::nullopt;
  return text(i);
}

std::int64_t Bound::integer(std::size_t i) const {
  const Value& value = *values_[i];
  if (!value.is_integral())
    raise(function_, " wants an integer as argument ", i + 1, ", got ", kind_of(value));
  return clamped(value.integer());
}

Bound bind(std::string_view function, const Arguments& arguments,
           std::initializer_list<std::string_view> parameters, std::size_t required, By by) {
  if (arguments.positional.size() > parameters.size())
    raise(function, " wants at most ", parameters.size(), " arguments, got ", arguments.positional.size());
  std::vector<std::optional<Value>> values(parameters.size());
  std::ranges::copy(arguments.positional, values.begin());
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::ranges::find(parameters, name);
    if (by == By::position || found == parameters.end())
      raise(function, " has no argument of the name ", quote(name));
    auto& slot = values[static_cast<std::size_t>(found - parameters.begin())];
    if (slot) raise(function, ": the argument ", quote(name), " is given twice");
    slot = value;
  }
  for (std::size_t i = 0; i < required; ++i)
    if (!values[i]) raise(function, " wants the argument ", quote(parameters.begin()[i]));
  return {function, std::move(values)};
}

std::int64_t clamped(Integer value) {
  using Range64 = std::numeric_limits<std::int64_t>;
  return static_cast<std::int64_t>(std::clamp(value, Integer{Range64::min()}, Integer{Range64::max()}));
}

}  // namespace nemocube::jinja
