#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "program.h"

// Programs that end while kernels wait or run. What is left is done among the exit handlers, when the main thread's
// thread_local objects have been destroyed. Each way to end needs a process of its own.

constexpr int n = 2048;
__device__ unsigned values[n];

/// Every thread adds 1 to its value so often, through memory.
static __global__ void add(int rounds) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  for (int k = 0; k < rounds; ++k) *static_cast<volatile unsigned*>(values + i) += 1;
}

void require_values(unsigned wanted) {
  std::vector<unsigned> found(n);
  CHECK_CUDA(cudaMemcpyFromSymbol(found.data(), values, n * sizeof(unsigned)));
  for (const unsigned value : found)
    if (value != wanted) {
      std::printf("%u for %u\n", value, wanted);
      std::fflush(nullptr);
      std::_Exit(1);
    }
}

enum class End { other, synchronises, launches } end = End::other;

/// Its destructor runs after the exit handlers that were registered in main.
struct Static {
  ~Static() {
    switch (end) {
      case End::other:
        return;
      case End::synchronises:
        CHECK_CUDA(cudaDeviceSynchronize());
        require_values(9);
        return;
      case End::launches:
        add<<<n / 64, 64>>>(3);
        add<<<n / 64, 64, 0, cudaStreamPerThread>>>(0);
        CHECK_CUDA(cudaStreamSynchronize(cudaStreamPerThread));
        require_values(12);
        return;
    }
  }
} before_main;

/// The main thread has executed kernels, and has more to do.
void launch() {
  add<<<n / 64, 64>>>(1);
  CHECK_CUDA(cudaDeviceSynchronize());
  for (int k = 0; k < 4; ++k) add<<<n / 64, 64>>>(2);
}

void queued() { launch(); }
void running() {
  launch();
  // Longer than the emulator leaves work alone.
  std::this_thread::sleep_for(std::chrono::milliseconds(40));
}
void static_synchronises() {
  launch();
  end = End::synchronises;
}
void static_launches() {
  launch();
  end = End::launches;
}
/// Destroyed before the exit handlers that the first call of CUDA has registered.
void later_static() {
  launch();
  static struct Later {
    ~Later() {
      CHECK_CUDA(cudaDeviceSynchronize());
      require_values(9);
    }
  } later;
}
/// Of the main thread, destroyed before the thread_local objects that its kernels have made.
void of_thread() {
  launch();
  thread_local struct Local {
    ~Local() {
      CHECK_CUDA(cudaDeviceSynchronize());
      require_values(9);
    }
  } local;
  (void)local;
}
void from_other_thread() {
  launch();
  std::thread([] { std::exit(0); }).join();
}

const struct {
  const char* name;
  void (*run)();
} ways[] = {{"queued", queued},
            {"running", running},
            {"static_synchronises", static_synchronises},
            {"static_launches", static_launches},
            {"later_static", later_static},
            {"of_thread", of_thread},
            {"from_other_thread", from_other_thread}};

int main(int argc, char** argv) {
  if (argc > 1) {
    for (const auto& way : ways)
      if (!std::strcmp(argv[1], way.name)) way.run();
    return 0;
  }
  bool right = true;
  for (const auto& way : ways) {
    char* const words[] = {argv[0], const_cast<char*>(way.name), nullptr};
    pid_t process = 0;
    int status = posix_spawn(&process, argv[0], nullptr, nullptr, words, environ);
    if (status == 0) waitpid(process, &status, 0);
    std::printf("%s: %s\n", way.name, status == 0 ? "ok" : "WRONG");
    right = right && status == 0;
  }
  return right ? 0 : 1;
}
