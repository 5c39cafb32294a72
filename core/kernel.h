#pragma once
#include <atomic>
#include <ranges>
#include <string_view>
#include <utility>
#include <vector>

#include "core/autograd.h"
#include "core/cuda/module.h"
#include "core/guard_device.h"

/// Kernels: functions with an implementation for each kind of device. This is the one place where a device
/// becomes a choice of code. The private header of an operation declares its kernels:
///     namespace cpu {
///     void relu2_forward(const Tensor& y, const Tensor& x);
///     }
///     inline const Kernel<cpu::relu2_forward> relu2_forward("relu2/forward");
/// x_cpu.cpp defines cpu::relu2_forward, x.cu provides its own function with the same signature
/// (cuda::Provide), and relu2_forward(y, x) calls the one for the device of the operands. The name of a
/// kernel has the operation and the work of the kernel; a kernel of one variant has the variant in the
/// middle: "ssd_scan/chunked/forward".
namespace nemocube {

/// A struct of operands calls fn(tensor) for each of its tensors, undefined ones included:
///     template <class Fn> void for_each_tensor(Fn&& fn) const { fn(x); fn(weight); }
template <class T>
concept OperandStruct = requires(const T& operands) {
  operands.for_each_tensor([](const Tensor&) {});
};

namespace kernel_detail {

/// Remembers that the program has a kernel of this name.
void declare(const char* name);

/// Finds the device of the operands of a call.
class OperandDevice {
 public:
  explicit OperandDevice(const char* kernel) : kernel_(kernel) {}
  /// std::logic_error when `t` lies on another device than the operands before it.
  void operator()(const Tensor& t) {
    if (!t.defined()) return;
    if (!found_) {
      device_ = t.device();
      found_ = true;
    } else if (t.device() != device_) [[unlikely]] {
      fail_for(t);
    }
  }
  template <class T>
  void visit(const T& argument) {
    if constexpr (std::is_same_v<T, Tensor>)
      (*this)(argument);
    else if constexpr (std::is_same_v<T, Output>)
      (*this)(argument.to);
    else if constexpr (OperandStruct<T>)
      argument.for_each_tensor(*this);
    else if constexpr (std::ranges::range<T>)
      for (const auto& element : argument) visit(element);
  }
  /// The CPU when no operand is defined. Error for Device::meta.
  Device device() const;

 private:
  [[noreturn]] void fail_for(const Tensor& t) const;

  const char* kernel_;
  Device device_;
  bool found_ = false;
};

}  // namespace kernel_detail

template <auto cpu_function>
class Kernel;

/// A call throws std::logic_error that names the kernel unless all tensors among the operands lie on one
/// device, and Error where this process cannot use CUDA.
template <class Result, class... Parameters, Result (*cpu_function)(Parameters...)>
class Kernel<cpu_function> {
 public:
  using Pointer = Result (*)(Parameters...);
  explicit Kernel(const char* name) : cuda_(name) { kernel_detail::declare(name); }
  Result operator()(Parameters... parameters) const {
    kernel_detail::OperandDevice operands(name());
    (operands.visit(parameters), ...);
    switch (operands.device().kind) {
      case Device::Kind::cuda:
        return cuda_(std::forward<Parameters>(parameters)...);
      case Device::Kind::guard: {
        const guard::Opened opened;
        return cpu_function(std::forward<Parameters>(parameters)...);
      }
      case Device::Kind::planned:
        // Results are sizes that follow from shapes.
        if constexpr (std::is_void_v<Result>) return;
        [[fallthrough]];
      default:
        return cpu_function(std::forward<Parameters>(parameters)...);
    }
  }
  /// For code of the module (x.cu), whose operands are on a CUDA device.
  Result on_cuda(Parameters... parameters) const { return cuda_(std::forward<Parameters>(parameters)...); }
  const char* name() const { return cuda_.name(); }

 private:
  cuda::Function<Result(Parameters...)> cuda_;
};

/// Whether the kernels of a variant can run on a device: all that are called "OP/VARIANT/..".
bool has_variant(Device device, std::string_view op, std::string_view variant);

/// The operations that have kernels, in alphabetical order.
std::vector<std::string_view> operations();
/// Whether an operation can run on CUDA devices: the CUDA backend provides all of its kernels. Of kernels
/// that belong to variants, the kernels of one variant suffice. Needs no device.
bool runs_on_cuda(std::string_view op);

}  // namespace nemocube
