#include <dlfcn.h>

#include "core/error.h"
#include "core/module_file.h"
#include "parallel/comm/mpi/transport.h"

namespace nemocube {

std::unique_ptr<Transport> mpi_transport() {
  // Global: Open MPI's own plugins look for its symbols in the process.
  void* module = ::dlopen(module_file("nemocube_mpi.so").c_str(), RTLD_NOW | RTLD_GLOBAL);
  require(module != nullptr, "several ranks need MPI: ", module ? "" : ::dlerror());
  const auto start = reinterpret_cast<decltype(&nemocube_start_mpi)>(::dlsym(module, "nemocube_start_mpi"));
  require(start != nullptr, "nemocube_mpi.so is not that of this program");
  return std::unique_ptr<Transport>(start());
}

}  // namespace nemocube
