#include "core/cuda/module.h"

#include <dlfcn.h>

#include <map>
#include <mutex>

#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/module_file.h"

namespace nemocube::cuda {
namespace {

struct Provided {
  const std::type_info* signature;
  module_detail::Address function;
};
using Functions = std::map<std::string, Provided, std::less<>>;
Functions& functions() {
  static auto* map = new Functions;  // never destroyed: kernels run until the last tensor is gone
  return *map;
}

/// Why the module is not there; empty once it is loaded.
std::string load() {
  if (std::string_view(NEMOCUBE_NO_CUDA) != "")
    return cat("this build has no CUDA backend: ", NEMOCUBE_NO_CUDA);
  try {
    if (::dlopen(module_file("nemocube_cuda.so").c_str(), RTLD_NOW | RTLD_LOCAL)) return {};
  } catch (const Error& error) {
    return error.what();
  }
  return cat("the CUDA backend cannot be loaded: ", ::dlerror());
}

module_detail::Address function_of(std::string_view name, const std::type_info& signature) {
  const auto found = functions().find(name);
  expect(found != functions().end() && *found->second.signature == signature, "nemocube_cuda.so has no ",
         name, " as this program calls it");
  return found->second.function;
}

}  // namespace

const std::string& backend_missing() {
  static const std::string reason = load();
  return reason;
}

const std::string& unavailable() {
  static const std::string reason = [] {
    if (!backend_missing().empty()) return backend_missing();
    const auto ask = function_of(device_problem.name(), typeid(std::string()));
    return reinterpret_cast<std::string (*)()>(ask)();
  }();
  return reason;
}

bool provides(std::string_view name) { return functions().contains(name); }

void module_detail::provide(const char* name, const std::type_info& signature, Address function) {
  expect(functions().emplace(name, Provided{&signature, function}).second, "two CUDA kernels are called ",
         name);
}

module_detail::Address module_detail::find(const char* name, const std::type_info& signature) {
  require(unavailable().empty(), "device cuda: ", unavailable());
  return function_of(name, signature);
}

}  // namespace nemocube::cuda
