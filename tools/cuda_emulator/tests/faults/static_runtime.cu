// Linked with the static runtime (CMakeLists.txt), which no emulator can take the place of.
#include <cstdio>

int main() {
  int devices = -1;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  std::printf("%d devices, %s\n", devices, cudaGetErrorString(error));
}
