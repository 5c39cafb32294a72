#include "core/kernels.h"

#include <algorithm>

namespace nemocube {
namespace {
std::map<std::string, std::vector<std::string>, std::less<>>& registry() {
  static std::map<std::string, std::vector<std::string>, std::less<>> map;
  return map;
}

template <class Range, class Name>
std::string join(const Range& range, Name name) {
  std::string text;
  for (const auto& item : range) text += (text.empty() ? "" : ", ") + std::string(name(item));
  return text;
}
}  // namespace

RegisterVariants::RegisterVariants(std::string op, std::vector<std::string> names) {
  registry()[std::move(op)] = std::move(names);
}

const std::map<std::string, std::vector<std::string>, std::less<>>& kernel_variants() { return registry(); }

void check_kernel_choice(const KernelChoice& choice) {
  for (const auto& [op, name] : choice.by_op) {
    const auto it = registry().find(op);
    require(it != registry().end(), "kernels: no operation '", op,
            "' with variants (there are: ", join(registry(), [](const auto& e) { return e.first; }), ")");
    require(std::ranges::find(it->second, name) != it->second.end(), "kernels.", op, ": no variant '", name,
            "' (there are: ", join(it->second, [](const auto& n) { return n; }), ")");
  }
}

int variant(const Context& ctx, std::string_view op) {
  if (!ctx.kernels) return 0;
  const auto chosen = ctx.kernels->by_op.find(op);
  if (chosen == ctx.kernels->by_op.end()) return 0;
  const auto& names = registry().find(op)->second;
  return static_cast<int>(std::ranges::find(names, chosen->second) - names.begin());
}

}  // namespace nemocube
