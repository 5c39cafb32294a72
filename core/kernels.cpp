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

std::size_t index_of(const std::string& op, const std::vector<std::string>& names, const std::string& name) {
  const auto found = std::ranges::find(names, name);
  require(found != names.end(), "kernels.", op, ": no variant '", name,
          "' (there are: ", join(names, [](const auto& n) { return n; }), ")");
  return static_cast<std::size_t>(found - names.begin());
}

}  // namespace

const std::map<std::string, std::vector<std::string>, std::less<>>& kernel_variants() { return registry(); }

void check_kernel_choice(const KernelChoice& choice) {
  for (const auto& [op, name] : choice.by_op) {
    const auto it = registry().find(op);
    require(it != registry().end(), "kernels: no operation '", op,
            "' with variants (there are: ", join(registry(), [](const auto& e) { return e.first; }), ")");
    index_of(op, it->second, name);
  }
}

void kernels_detail::register_variants(const std::string& op, std::vector<std::string> names) {
  registry()[op] = std::move(names);
}

std::size_t kernels_detail::chosen_index(const Context& ctx, const std::string& op) {
  if (!ctx.kernels) return 0;
  const auto chosen = ctx.kernels->by_op.find(op);
  return chosen == ctx.kernels->by_op.end() ? 0 : index_of(op, registry().at(op), chosen->second);
}

}  // namespace nemocube
