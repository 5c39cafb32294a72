#pragma once
#include <atomic>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>

/// The CUDA backend is a module, nemocube_cuda.so, made of all files x.cu. The program loads it the first time that
/// a tensor is to be on Device::cuda, so a run on the CPU never loads a CUDA library. The module uses the
/// program's own functions of core (tensors, errors), and provides kernels, which the program finds by name.
namespace nemocube::cuda {

/// Why the module cannot be loaded, for a message: the build has none, or CUDA's libraries are not there. Empty when
/// the module is loaded.
const std::string& backend_missing();

/// Why this process cannot use a CUDA device, for a message: backend_missing(), or there is no device. Empty when it
/// can.
const std::string& unavailable();

/// Whether the module has kernels of `op`, the name of a folder in ops/. Needs no device.
bool has_kernels(std::string_view op);

namespace module_detail {
using Function = void (*)();
/// Called by the module while it is loaded.
void provide(const char* name, const std::type_info& signature, Function function);
/// Loads the module. Throws Error for a process that cannot use CUDA, std::logic_error when the module provides no
/// such function.
Function find(const char* name, const std::type_info& signature);
}  // namespace module_detail

/// A function of the module, called like an ordinary one. Its first call finds it. The header of the kernels of an
/// operation declares it with the signature of the CPU kernel:
///     inline const Kernel<decltype(cpu::relu2_forward)> relu2_forward("relu2/forward");
/// The name is that of the operation and what the function does.
template <class Signature>
class Kernel;

template <class Result, class... Parameters>
class Kernel<Result(Parameters...)> {
 public:
  using Pointer = Result (*)(Parameters...);
  constexpr explicit Kernel(const char* name) : name_(name) {}
  Result operator()(Parameters... parameters) const {
    Pointer function = function_.load(std::memory_order_relaxed);
    if (!function) {
      function = reinterpret_cast<Pointer>(module_detail::find(name_, typeid(Result(Parameters...))));
      function_.store(function, std::memory_order_relaxed);
    }
    return function(std::forward<Parameters>(parameters)...);
  }
  const char* name() const { return name_; }

 private:
  const char* name_;
  mutable std::atomic<Pointer> function_ = nullptr;
};

/// In x.cu: what a Kernel calls.
///     const Provide provided[] = {{relu2_forward, forward}, {relu2_backward, backward}};
class Provide {
 public:
  template <class Result, class... Parameters>
  Provide(const Kernel<Result(Parameters...)>& kernel, Result (*function)(Parameters...)) {
    module_detail::provide(kernel.name(), typeid(Result(Parameters...)),
                           reinterpret_cast<module_detail::Function>(function));
  }
};

}  // namespace nemocube::cuda
