#include "ptx/scopes.h"

#include <charconv>

namespace emulator::ptx {

std::string Scopes::make_unique(std::string_view name) {
  const std::uint32_t before = times_declared_[name]++;
  const bool hides_module = before == 0 && depth() > 1 && taken_.contains(name);
  if (hides_module) ++times_declared_[name];
  std::string unique(name);
  if (before > 0 || hides_module) unique += "#" + std::to_string(times_declared_[name]);
  return unique;
}

bool Scopes::declare(std::string_view name, Entry entry) {
  return scopes_.back().names.emplace(name, std::move(entry)).second;
}

bool Scopes::declare_register(std::string_view name, std::uint32_t index) {
  return declare(name, {Kind::reg, index, {}});
}

bool Scopes::declare_family(std::string_view prefix, std::uint32_t first, std::uint32_t count) {
  return scopes_.back().families.emplace(prefix, Family{first, count}).second;
}

bool Scopes::declare_label(std::string_view name, std::uint32_t index) {
  return declare(name, {Kind::label, index, make_unique(name)});
}

bool Scopes::declare_symbol(std::string_view name) {
  return declare(name, {Kind::symbol, 0, make_unique(name)});
}

const Scopes::Entry* Scopes::find(std::string_view name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    const auto entry = scope->names.find(name);
    if (entry != scope->names.end()) return &entry->second;
    if (member(*scope, name)) return nullptr;
  }
  return nullptr;
}

std::optional<std::uint32_t> Scopes::find_register(std::string_view name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    const auto entry = scope->names.find(name);
    if (entry != scope->names.end()) {
      return entry->second.kind == Kind::reg ? std::optional(entry->second.index) : std::nullopt;
    }
    if (const auto index = member(*scope, name)) return index;
  }
  return std::nullopt;
}

std::optional<std::uint32_t> Scopes::member(const Scope& scope, std::string_view name) {
  if (scope.families.empty()) return std::nullopt;
  for (std::size_t split = name.size(); split > 1 && name[split - 1] >= '0' && name[split - 1] <= '9';
       --split) {
    const std::string_view number = name.substr(split - 1);
    if (number.size() > 1 && number[0] == '0') continue;
    const auto family = scope.families.find(name.substr(0, split - 1));
    if (family == scope.families.end()) continue;
    std::uint32_t index = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), index);
    if (error == std::errc() && index < family->second.count) return family->second.first + index;
  }
  return std::nullopt;
}

}  // namespace emulator::ptx
