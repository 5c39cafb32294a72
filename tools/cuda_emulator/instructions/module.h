#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "machine/program.h"
#include "memory/address_space.h"

namespace emulator {

/// A module (one translation unit, or all units of a program linked by name under -rdc) on one virtual device: its variables have
/// addresses and initial contents; its kernels are decoded when they are first asked for. Thread-safe.
class Module {
 public:
  /// Parses and links. Throws ptx::SyntaxError, or std::runtime_error for a name that no unit defines (when a kernel that needs the
  /// name is decoded).
  /// `other`: the same module on another device, whose managed variables are this one's too.
  Module(const std::vector<std::string>& texts, int device, Module* other = nullptr);
  ~Module();

  /// nullptr when the module has no such kernel. Decodes the kernel and all it can call.
  const Kernel* kernel(std::string_view name);
  /// The .global or .const variable; nullptr when there is none. Managed variables lie in managed memory.
  const Allocation* variable(std::string_view name);
  std::vector<std::string> kernel_names() const;
  /// The function behind an address that a program took (call through a register), or nullptr.
  static const Function* function_at(std::uint64_t token);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace emulator
