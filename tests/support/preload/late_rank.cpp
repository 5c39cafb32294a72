// A library to be preloaded into the ranks of a job: rank 0 comes half a second late out of MPI_Finalize,
// when the other ranks have ended.

#include <dlfcn.h>

#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>

extern "C" int MPI_Finalize() {
  // The program loads MPI for itself alone, so RTLD_NEXT does not find this function.
  void* const mpi = ::dlopen("libmpi.so.40", RTLD_NOW | RTLD_NOLOAD);
  const int result = reinterpret_cast<int (*)()>(::dlsym(mpi, "MPI_Finalize"))();
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (rank && std::string_view(rank) == "0") std::this_thread::sleep_for(std::chrono::milliseconds(500));
  return result;
}
