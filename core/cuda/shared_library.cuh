#pragma once
#include <dlfcn.h>

#include <string>
#include <string_view>

#include "core/error.h"

namespace nemocube::cuda {

/// A library that is loaded when a run first needs it, and never closed: its threads, and what it has queued,
/// may run until the process ends.
class SharedLibrary {
 public:
  /// `name` and `purpose` are for messages. Throws Error: "NCCL, by which ranks exchange data, cannot be
  /// loaded: ...".
  SharedLibrary(const std::string& file, std::string_view name, std::string_view purpose)
      : name_(name), handle_(::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    require(handle_, name, ", ", purpose, ", cannot be loaded: ", ::dlerror());
  }

  /// Finds the function of this name. Throws Error: "NCCL cannot be used: ...".
  template <class Pointer>
  void find(const char* function_name, Pointer& function) const {
    function = reinterpret_cast<Pointer>(::dlsym(handle_, function_name));
    require(function, name_, " cannot be used: ", ::dlerror());
  }

 private:
  std::string name_;
  void* handle_;
};

}  // namespace nemocube::cuda
