#include "core/kernel.h"

#include <algorithm>
#include <map>
#include <set>

namespace nemocube {
namespace {

std::set<std::string_view>& declared() {
  static auto* names = new std::set<std::string_view>;
  return *names;
}

bool provided(std::string_view name) { return cuda::backend_missing().empty() && cuda::provides(name); }

}  // namespace

void kernel_detail::declare(const char* name) { declared().insert(name); }

Device kernel_detail::OperandDevice::device() const {
  expect(!device_.is_meta(), kernel_, ": operands on meta have no data");
  return device_;
}

void kernel_detail::OperandDevice::fail_for(const Tensor& t) const {
  expect(false, kernel_, ": an operand of shape ", t.shape(), " is on ", t.device(), ", others are on ",
         device_);
  throw std::logic_error("unreachable");
}

bool has_variant(Device device, std::string_view op, std::string_view variant) {
  if (!device.is_cuda()) return true;
  const std::string start = cat(op, "/", variant, "/");
  return std::ranges::all_of(
      declared(), [&](std::string_view name) { return !name.starts_with(start) || provided(name); });
}

std::vector<std::string_view> operations() {
  std::vector<std::string_view> found;
  for (const std::string_view name : declared()) found.push_back(name.substr(0, name.find('/')));
  found.erase(std::ranges::unique(found).begin(), found.end());
  return found;
}

bool runs_on_cuda(std::string_view op) {
  const std::string start = cat(op, "/");
  bool any = false;
  std::map<std::string_view, bool> variants;  // whether all kernels of a variant are there
  for (const std::string_view name : declared()) {
    if (!name.starts_with(start)) continue;
    any = true;
    const std::string_view rest = name.substr(start.size());
    if (const std::size_t end = rest.find('/'); end != std::string_view::npos) {
      bool& whole = variants.emplace(rest.substr(0, end), true).first->second;
      whole = whole && provided(name);
    } else if (!provided(name)) {
      return false;
    }
  }
  return any && (variants.empty() ||
                 std::ranges::any_of(variants, [](const auto& variant) { return variant.second; }));
}

}  // namespace nemocube
