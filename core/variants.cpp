#include "core/variants.h"

#include <algorithm>

#include "core/kernel.h"

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

// The variants of an operation that a device has.
std::vector<std::string> names_on(Device device, const std::string& op) {
  std::vector<std::string> names;
  for (const std::string& name : registry().at(op))
    if (has_variant(device, op, name)) names.push_back(name);
  return names;
}

void check_variant(const std::string& op, const std::string& name, Device device) {
  const std::vector<std::string> names = names_on(device, op);
  require(std::ranges::find(names, name) != names.end(), "kernels.", op, ": no variant '", name, "'",
          device.is_host() ? "" : cat(" on ", device),
          " (there are: ", join(names, [](const auto& n) { return n; }), ")");
}

}  // namespace

const std::map<std::string, std::vector<std::string>, std::less<>>& kernel_variants() { return registry(); }

void check_kernel_choice(const KernelChoice& choice, Device device) {
  for (const auto& [op, name] : choice.by_op) {
    const auto it = registry().find(op);
    require(it != registry().end(), "kernels: no operation '", op,
            "' with variants (there are: ", join(registry(), [](const auto& e) { return e.first; }), ")");
    check_variant(op, name, device);
  }
}

void kernels_detail::register_variants(const std::string& op, std::vector<std::string> names) {
  registry()[op] = std::move(names);
}

std::size_t kernels_detail::chosen_index(const Context& ctx, const std::string& op, Device device) {
  const auto& names = registry().at(op);
  const auto index_of = [&](const std::string& name) {
    return static_cast<std::size_t>(std::ranges::find(names, name) - names.begin());
  };
  if (ctx.kernels)
    if (const auto chosen = ctx.kernels->by_op.find(op); chosen != ctx.kernels->by_op.end()) {
      check_variant(op, chosen->second, device);
      return index_of(chosen->second);
    }
  if (!device.is_cuda()) return 0;
  const std::vector<std::string> there = names_on(device, op);
  require(!there.empty(), op, ": ", device, " has none of the variants");
  return index_of(there.front());
}

}  // namespace nemocube
