#include "train/recipe/reading.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "train/recipe/scalar.h"

namespace nemocube::recipe {

const Value* Reading::find(std::string_view path) const {
  const Value* at = &root_;
  while (at != nullptr && !path.empty()) {
    const std::string_view part = path.substr(0, path.find('.'));
    path.remove_prefix(std::min(part.size() + 1, path.size()));
    const auto index = at->kind == Value::Kind::list ? parse_integer(part) : std::nullopt;
    if (at->kind != Value::Kind::list)
      at = at->find(part);
    else
      at = index && *index >= 0 && static_cast<std::size_t>(*index) < at->items.size()
               ? &at->items[static_cast<std::size_t>(*index)]
               : nullptr;
  }
  return at;
}

bool Reading::given(std::string_view path) const {
  const Value* value = find(path);
  if (value == nullptr || any_faulty({std::string(path)})) return false;
  return !is_null(Place{*value, std::string(path), ""});
}

std::string Reading::where(const Value* value, const std::string& path) const {
  if (value == nullptr) return cat(file_, ": ", path);
  if (value->line == 0) return cat("--set ", path);
  return cat(file_, ":", value->line, ": ", path);
}

bool Reading::attempt(const Value* value, const std::string& path, const std::function<void()>& work) {
  try {
    work();
    return true;
  } catch (const Error& error) {
    problem(value, path, error.what());
    return false;
  }
}

void Reading::problem(const Value* value, const std::string& path, const std::string& message) {
  const int line = value != nullptr && value->line > 0 ? value->line : std::numeric_limits<int>::max();
  const bool said = std::ranges::any_of(problems_, [&](const Problem& p) { return p.message == message; });
  if (!said) problems_.push_back({line, message});
  mark_faulty(path);
}

bool Reading::any_faulty(const std::vector<std::string>& paths) const {
  for (const std::string& path : paths)
    for (std::size_t end = 0; end != std::string::npos;) {
      end = path.find('.', end + 1);
      if (faulty_.contains(path.substr(0, end))) return true;
    }
  return false;
}

void Reading::throw_problems() const {
  if (problems_.empty()) return;
  auto ordered = problems_;
  std::ranges::stable_sort(ordered, {}, &Problem::line);
  if (ordered.size() == 1) fail(ordered[0].message);
  constexpr std::size_t most = 30;
  std::string text = cat(file_, ": ", ordered.size(), many_problems() ? " problems or more:" : " problems:");
  for (std::size_t i = 0; i < std::min(most, ordered.size()); ++i) text += "\n  " + ordered[i].message;
  if (ordered.size() > most) text += cat("\n  and ", ordered.size() - most, " more");
  fail(text);
}

}  // namespace nemocube::recipe
