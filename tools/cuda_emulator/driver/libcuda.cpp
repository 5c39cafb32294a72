#include <cerrno>
#include <cstdio>
#include <cstdlib>

/// libcuda.so.1, the driver, which the emulator does not have: its runtime needs none. A program that asks for it is linked with
/// the static runtime (nvcc's default) or calls the driver API. Without this library the static runtime would find no
/// device, and the program would tell its user about a driver that is too old.
namespace {

[[noreturn]] void refuse() {
  std::fprintf(stderr,
               "cuda_emulator: %s asks for the CUDA driver, because it is linked with the static CUDA "
               "runtime or calls the "
               "driver API; want a program of the shared runtime alone: nvcc --cudart shared\n",
               program_invocation_name);
  std::fflush(nullptr);
  std::_Exit(2);
}

}  // namespace

// What programs and the static runtime call first.
extern "C" {
int cuInit(unsigned) { refuse(); }
int cuDriverGetVersion(int*) { refuse(); }
int cuGetProcAddress(const char*, void**, int, unsigned long long) { refuse(); }
int cuGetProcAddress_v2(const char*, void**, int, unsigned long long, void*) { refuse(); }
}
