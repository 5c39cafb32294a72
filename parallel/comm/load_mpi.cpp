#include <dlfcn.h>

#include <filesystem>
#include <system_error>

#include "core/error.h"
#include "parallel/comm/transport.h"

namespace nemocube {
namespace {

// Beside the program, as built, or where `make install` puts it.
std::filesystem::path module_file() {
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const char* place : {"nemocube_mpi.so", "../lib/nemocube/nemocube_mpi.so"}) {
    std::error_code error;
    if (std::filesystem::exists(folder / place, error)) return folder / place;
  }
  fail("several ranks need the module nemocube_mpi.so, which is neither in ", folder.string(), " nor in ",
       (folder / "../lib/nemocube").lexically_normal().string());
}

}  // namespace

std::unique_ptr<Transport> mpi_transport() {
  // Global: Open MPI's own plugins look for its symbols in the process.
  void* module = ::dlopen(module_file().c_str(), RTLD_NOW | RTLD_GLOBAL);
  require(module != nullptr, "several ranks need MPI: ", module ? "" : ::dlerror());
  const auto start = reinterpret_cast<decltype(&nemocube_start_mpi)>(::dlsym(module, "nemocube_start_mpi"));
  require(start != nullptr, "nemocube_mpi.so is not that of this program");
  return std::unique_ptr<Transport>(start());
}

}  // namespace nemocube
