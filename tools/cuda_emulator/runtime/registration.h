#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "instructions/module.h"

/// What the program's constructors register: fat binaries with the names of kernels and variables. Nothing is parsed before a kernel or a
/// variable is used.
namespace emulator {

/// One registered fat binary: a translation unit, or all units of a program built with -rdc.
class Binary {
 public:
  explicit Binary(const void* wrapper) : wrapper_(wrapper) {}
  /// The binary's module on a device, loaded now if need be. Throws ApiError (cudaErrorNoKernelImageForDevice),
  /// ptx::SyntaxError, std::runtime_error.
  Module& module(int device);
  /// PTX of the units that `module` is made of.
  const std::vector<std::string>& texts();
  /// ptx and architecture of the chosen text: 90 for compute_90.
  int architecture();
  std::map<void**, std::string> managed;  ///< host pointers to fill, by the variables' names
  void fill_managed_pointers(int device);

 private:
  void choose();
  const void* wrapper_;
  std::recursive_mutex mutex_;
  bool chosen_ = false;
  int architecture_ = 0;
  std::vector<std::string> texts_;
  std::map<int, std::unique_ptr<Module>> modules_;
};

/// A kernel as the program knows it; cudaKernel_t and cudaFunction_t are its address.
struct RegisteredKernel {
  Binary* binary = nullptr;
  std::string name;  ///< mangled
  const void* host = nullptr;
  /// What cudaFuncSetAttribute set: dynamic shared memory beyond 48 KiB, carve-out in percent (-1: default), clusters beyond 8.
  std::optional<int> max_dynamic_shared;
  int carveout = -1;
  bool non_portable_cluster = false;

  /// nullptr when the module has no such kernel.
  const Kernel* on(int device);

 private:
  std::mutex mutex_;
  std::map<int, const Kernel*> kernels_;
};

struct RegisteredVariable {
  Binary* binary = nullptr;
  std::string name;
  std::uint64_t bytes = 0;
  /// nullptr when the module has no such variable.
  const Allocation* on(int device) const { return binary->module(device).variable(name); }
};

/// The kernel behind a host function or a kernel handle, nullptr for anything else.
RegisteredKernel* find_kernel(const void* function);
/// The variable behind the address of its host shadow, nullptr for anything else.
const RegisteredVariable* find_variable(const void* symbol);

}  // namespace emulator
