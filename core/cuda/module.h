#pragma once
#include <atomic>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>

/// The CUDA backend is a module, nemocube_cuda.so, made of all files x.cu. The program loads it the first
/// time that a tensor is to be on Device::cuda, so a run on the CPU never loads a CUDA
/// library. The module uses the program's own functions of core (tensors, errors), and
/// provides kernels that the program finds by name.
namespace nemocube::cuda {

/// Why the module cannot be loaded, for a message: the build has none, or CUDA's libraries are not there.
/// Empty when the module is loaded.
const std::string& backend_missing();

/// Why this process cannot use a CUDA device, for a message: backend_missing(), or there is no device. Empty
/// when it can.
const std::string& unavailable();

/// Whether the module has the function `name`. Needs no device; only where backend_missing() is empty.
bool provides(std::string_view name);

namespace module_detail {
using Address = void (*)();
/// Called by the module while it is loaded.
void provide(const char* name, const std::type_info& signature, Address function);
/// Loads the module. Throws Error for a process that cannot use CUDA, std::logic_error when the module
/// provides no such function.
Address find(const char* name, const std::type_info& signature);
}  // namespace module_detail

/// A function of the module, called like an ordinary one. The first call finds the function. Kernels
/// (core/kernel.h) call their functions in this way:
///     inline const Function<void(int index)> use_device("core/use_device");
template <class Signature>
class Function;

template <class Result, class... Parameters>
class Function<Result(Parameters...)> {
 public:
  using Pointer = Result (*)(Parameters...);
  constexpr explicit Function(const char* name) : name_(name) {}
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

/// In x.cu: provides the functions that a Function or a Kernel calls.
///     const Provide provided[] = {{relu2_forward, forward}, {relu2_backward, backward}};
class Provide {
 public:
  template <class Wanted>
  Provide(const Wanted& wanted, typename Wanted::Pointer function) {
    module_detail::provide(wanted.name(), typeid(std::remove_pointer_t<typename Wanted::Pointer>),
                           reinterpret_cast<module_detail::Address>(function));
  }
};

}  // namespace nemocube::cuda
